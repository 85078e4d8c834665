"""Exports for scripts."""

import uuid
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from backend.checkpoints import downloads, hub, queries
from backend.checkpoints.export_schemas import ExportRequest, HubRequest
from backend.checkpoints.tables import Export
from backend.domain.checkpoints.exports import ExportOptions, HubUpload
from backend.domain.vocabulary import ExportForm, ExportStatus
from backend.training import service
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.paging import After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["training"])


class ExportOut(BaseModel):
    """An export and, once it was proven, its passport."""

    id: uuid.UUID
    checkpoint_id: uuid.UUID
    run_id: uuid.UUID
    form: ExportForm
    status: ExportStatus
    reason: str | None
    progress: dict[str, Any]
    passport: dict[str, Any]
    card: str
    licence: str
    stored: str | None
    """Where the files lie unpacked in the artifact store, if that was asked for."""
    upload: HubUpload | None
    """The newest one to the Hub."""
    created_at: datetime
    ended_at: datetime | None


class OfferedFormOut(BaseModel):
    """A form of export for a checkpoint."""

    form: ExportForm
    title: str
    help: str
    refusal: str | None
    """Why it is not offered; null: it is."""
    is_default: bool


class HubAnswer(BaseModel):
    """What would be sent and, unless that was all that was asked, the upload that was queued."""

    repository: str
    is_private: bool
    message: str
    files: dict[str, int]
    bytes: int
    upload: HubUpload | None = None


@router.post("/exports", status_code=201)
def start_export(request: ExportRequest, session: SessionDep, actor: Trainer) -> ExportOut:
    """Export a checkpoint; it is reloaded and examined again before it counts as exported."""
    checkpoint = queries.get_checkpoint(session, request.checkpoint_id)
    return _export_out(service.start_export(session, actor, checkpoint, request))


@router.get("/exports")
def list_exports(
    session: SessionDep,
    _: Viewer,
    run_id: uuid.UUID | None = None,
    checkpoint_id: uuid.UUID | None = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[ExportOut]:
    """Newest first."""
    found = queries.exports(session, run_id=run_id, checkpoint_id=checkpoint_id, after=after, limit=limit)
    return Page(items=[_export_out(export) for export in found.items], next=found.next)


@router.get("/checkpoints/{checkpoint_id}/exports/forms")
def list_forms(checkpoint_id: uuid.UUID, session: SessionDep, _: Viewer) -> list[OfferedFormOut]:
    """All forms of export, each with why it is not offered for this checkpoint."""
    offered = service.forms_of(session, queries.get_checkpoint(session, checkpoint_id))
    return [OfferedFormOut.model_validate(each, from_attributes=True) for each in offered]


@router.get("/exports/{export_id}")
def get_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> ExportOut:
    return _export_out(queries.get_export(session, export_id))


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    """The zip: weights, tokenizer, model card, manifest, passport and inference.py."""
    return downloads.export_zip(queries.get_export(session, export_id))


@router.post("/exports/{export_id}/hub")
def upload_export(export_id: uuid.UUID, request: HubRequest, session: SessionDep, actor: Trainer) -> HubAnswer:
    """Send a proven export to the Hugging Face Hub; with `dry_run` only say what would be sent."""
    export = queries.get_export(session, export_id)
    answer = HubAnswer.model_validate(hub.plan_upload(export, request), from_attributes=True)
    if not request.dry_run:
        answer.upload = hub.start_upload(session, actor, export, request)
    return answer


def _export_out(export: Export) -> ExportOut:
    options = ExportOptions.model_validate(export.options)
    told = {name: getattr(export, name) for name in ExportOut.model_fields if hasattr(export, name)}
    return ExportOut(**told, licence=options.licence, stored=options.stored, upload=options.hub)
