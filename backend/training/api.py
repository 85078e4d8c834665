"""Training, checkpoints and exports for scripts."""

import uuid
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from backend.db.models import Checkpoint, Export
from backend.domain.training_presets import PRESETS, Preset
from backend.domain.vocabulary import ExportStatus, RunStatus
from backend.training import downloads, queries, service
from backend.training.forms import ExportRequest, TrainingRequest
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.paging import After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["training"])


class StartedRun(BaseModel):
    """A training run that was queued."""

    id: uuid.UUID
    name: str
    status: RunStatus
    policy_id: uuid.UUID | None
    configuration: dict[str, Any]


class CheckpointOut(BaseModel):
    """Saved weights of a policy at a training step."""

    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    policy_id: uuid.UUID
    policy: str
    run_id: uuid.UUID | None
    stage: str
    step: int
    heldout_reward: float | None
    heldout: dict[str, Any]
    is_best: bool
    size_bytes: int
    created_at: datetime


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


@router.get("/training/presets")
def list_presets(_: Viewer) -> dict[str, Preset]:
    """Configurations that were tried, with what each is for."""
    return dict(PRESETS)


@router.post("/training", status_code=201)
def start_training(request: TrainingRequest, session: SessionDep, actor: Trainer) -> StartedRun:
    """Start a training run; follow it under /runs."""
    run = service.start_training(session, actor, request)
    return StartedRun(
        id=run.id, name=run.name, status=run.status, policy_id=run.policy_id, configuration=run.configuration
    )


@router.get("/checkpoints")
def list_checkpoints(
    session: SessionDep,
    _: Viewer,
    run_id: uuid.UUID | None = None,
    policy_id: uuid.UUID | None = None,
    is_best: bool | None = None,
    after: After = None,
    limit: Limit = 50,
) -> Page[CheckpointOut]:
    """Newest first."""
    found = queries.checkpoints(session, run_id=run_id, policy_id=policy_id, is_best=is_best, after=after, limit=limit)
    return Page(items=[_checkpoint_out(checkpoint) for checkpoint in found.items], next=found.next)


@router.get("/checkpoints/{checkpoint_id}")
def get_checkpoint(checkpoint_id: uuid.UUID, session: SessionDep, _: Viewer) -> CheckpointOut:
    return _checkpoint_out(queries.get_checkpoint(session, checkpoint_id))


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


def _checkpoint_out(checkpoint: Checkpoint) -> CheckpointOut:
    fields = {name: getattr(checkpoint, name) for name in CheckpointOut.model_fields if name != "policy"}
    return CheckpointOut(**fields, policy=checkpoint.policy.name)


def _export_out(export: Export) -> ExportOut:
    return ExportOut.model_validate(export)
