"""Launching for scripts: presets, pre-flight, start, the configuration file."""

import uuid
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding
from backend.domain.training.presets import PRESETS, Preset
from backend.domain.vocabulary import PreflightStatus, RunStatus
from backend.training import service
from backend.training.configuration_file import ConfigurationFile, file_of_run
from backend.training.launch_form import LaunchField, LaunchSection, launch_sections
from backend.training.launch_queries import get_preflight, get_training_run
from backend.training.preflight import configuration_of, findings_of, start_preflight, verdict_of
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.tables import Preflight
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


class ChoiceOut(BaseModel):
    """One choice of a training run."""

    name: str
    """Dotted, as `--set` and configuration files have it."""
    section: str
    """Title of its block."""
    default: str
    """As `--set` reads it; empty: nothing."""
    one_of: list[str]
    """The values that it may have, where they are few."""
    only: str
    """With which other choice it counts: `model.source=base|checkpoint`, any of those after a semicolon; empty:
    always."""
    help: str


@router.get("/presets")
def list_presets(_: Viewer) -> dict[str, Preset]:
    """Configurations that were tried, with what each is for."""
    return dict(PRESETS)


@router.get("/choices")
def list_choices(_: Viewer, preset: str | None = None) -> list[ChoiceOut]:
    """Every choice of a training run with its default, or the preset's value, and what it does: as the form has it."""
    sections = launch_sections(resolve_configuration(preset, {}))
    return [_choice(section, field) for section in sections for field in section.fields]


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


def _choice(section: LaunchSection, field: LaunchField) -> ChoiceOut:
    return ChoiceOut(
        name=field.name,
        section=section.title,
        default=field.value,
        one_of=[option.value for option in field.options if option.value],
        only=field.only or section.only,
        help=field.help,
    )


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
