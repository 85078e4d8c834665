"""Exports for scripts."""

import uuid
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from backend.db.models import Export
from backend.domain.vocabulary import ExportStatus
from backend.training import downloads, queries, service
from backend.training.forms import ExportRequest
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.paging import After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["training"])


class ExportOut(BaseModel):
    """An export and, once it was proven, its passport."""

    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    checkpoint_id: uuid.UUID
    run_id: uuid.UUID
    status: ExportStatus
    reason: str | None
    progress: dict[str, Any]
    passport: dict[str, Any]
    card: str
    created_at: datetime
    ended_at: datetime | None


@router.post("/exports", status_code=201)
def start_export(request: ExportRequest, session: SessionDep, actor: Trainer) -> ExportOut:
    """Export a checkpoint; it is reloaded and examined again before it counts as exported."""
    checkpoint = queries.get_checkpoint(session, request.checkpoint_id)
    return _export_out(service.start_export(session, actor, checkpoint))


@router.get("/exports")
def list_exports(
    session: SessionDep, _: Viewer, run_id: uuid.UUID | None = None, after: After = None, limit: Limit = 50
) -> Page[ExportOut]:
    """Newest first."""
    found = queries.exports(session, run_id=run_id, after=after, limit=limit)
    return Page(items=[_export_out(export) for export in found.items], next=found.next)


@router.get("/exports/{export_id}")
def get_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> ExportOut:
    return _export_out(queries.get_export(session, export_id))


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    """The zip: safetensors, tokenizer, model card, manifest and passport."""
    return downloads.export_zip(queries.get_export(session, export_id))


def _export_out(export: Export) -> ExportOut:
    return ExportOut.model_validate(export)
