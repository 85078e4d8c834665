"""Launching for scripts: presets, pre-flight, start, the configuration file."""

import uuid
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from backend.db.models import Preflight
from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding
from backend.domain.training.presets import PRESETS, Preset
from backend.domain.vocabulary import PreflightStatus, RunStatus
from backend.training import service
from backend.training.configuration_file import ConfigurationFile, file_of_run
from backend.training.forms import TrainingRequest
from backend.training.launch_queries import get_preflight, get_training_run
from backend.training.preflight import configuration_of, findings_of, start_preflight, verdict_of
from backend.web.dependencies import SessionDep, Trainer, Viewer

router = APIRouter(prefix="/api/v1/training", tags=["training"])


class StartedRun(BaseModel):
    """A training run that was queued."""

    id: uuid.UUID
    name: str
    status: RunStatus
    policy_id: uuid.UUID | None
    configuration: dict[str, Any]


class PreflightOut(BaseModel):
    """What was found out about a training run before it is queued; findings come in while it is running."""

    id: uuid.UUID
    version_id: uuid.UUID
    environment: str
    status: PreflightStatus
    verdict: FindingStatus
    """The worst of what was found so far."""
    findings: list[PreflightFinding]
    progress: dict[str, Any]
    reason: str | None
    """Why it could not be carried out."""
    arithmetic: str
    configuration: dict[str, Any]
    created_at: datetime
    ended_at: datetime | None


@router.get("/presets")
def list_presets(_: Viewer) -> dict[str, Preset]:
    """Configurations that were tried, with what each is for."""
    return dict(PRESETS)


@router.post("", status_code=201)
def start_training(request: TrainingRequest, session: SessionDep, actor: Trainer) -> StartedRun:
    """Start a training run; follow it under /runs."""
    run = service.start_training(session, actor, request)
    return StartedRun(
        id=run.id, name=run.name, status=run.status, policy_id=run.policy_id, configuration=run.configuration
    )


@router.post("/preflight", status_code=201)
def begin_preflight(request: TrainingRequest, session: SessionDep, actor: Trainer) -> PreflightOut:
    """Check a training run without starting it: what is known at once is in the answer, a worker finds the rest."""
    return _out(start_preflight(session, actor, request))


@router.get("/preflight/{preflight_id}")
def show_preflight(preflight_id: uuid.UUID, session: SessionDep, _: Viewer) -> PreflightOut:
    return _out(get_preflight(session, preflight_id))


@router.get("/{run_id}/configuration")
def show_configuration(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> ConfigurationFile:
    """What `proctor train --config` reads to start the same run again."""
    return file_of_run(get_training_run(session, run_id))


def _out(preflight: Preflight) -> PreflightOut:
    version = preflight.version
    return PreflightOut(
        id=preflight.id,
        version_id=preflight.version_id,
        environment=f"{version.environment.name}@{version.number}",
        status=preflight.status,
        verdict=verdict_of(preflight),
        findings=findings_of(preflight),
        progress=preflight.progress,
        reason=preflight.reason,
        arithmetic=batch_in_words(configuration_of(preflight)),
        configuration=preflight.configuration,
        created_at=preflight.created_at,
        ended_at=preflight.ended_at,
    )
