"""Pages of training: launch, checkpoints, exports."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, EnvironmentVersion, Export
from backend.domain.ids import new_id
from backend.domain.training import TrainingConfiguration
from backend.domain.training_presets import PRESETS
from backend.domain.vocabulary import ExportStatus
from backend.errors import InvalidInput
from backend.training import downloads, queries, service
from backend.training.forms import TrainingRequest, read_training_form, resolve_configuration
from backend.training.launch import LaunchSection, changed_choices, flatten, launch_command, launch_sections
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.pages import page, render_block, see_other, wants_block
from backend.web.paging import After
from backend.web.streams import END, live

router = APIRouter()


@dataclass(frozen=True, slots=True)
class LaunchPage:
    """The launch form, empty or with what was refused."""

    versions: Sequence[EnvironmentVersion]
    version_id: uuid.UUID | None
    presets: list[str]
    preset: str
    sections: list[LaunchSection]
    rollouts: int
    command: str
    name: str
    without_certificate: str
    key: str
    errors: dict[str, str] = field(default_factory=dict)
    message: str = ""


@router.get("/training/new", response_class=HTMLResponse)
def new_training(
    request: Request, session: SessionDep, _: Trainer, version_id: uuid.UUID | None = None, preset: str = ""
) -> HTMLResponse:
    preset = preset if preset in PRESETS else ""
    shown = TrainingRequest(version_id=version_id or uuid.UUID(int=0), preset=preset)
    return page(request, "training/new.html", _launch_page(session, shown))


@router.post("/training", response_class=HTMLResponse)
def start_training(
    request: Request,
    session: SessionDep,
    actor: Trainer,
    form: Annotated[TrainingRequest, Depends(read_training_form)],
) -> Response:
    try:
        run = service.start_training(session, actor, form)
    except InvalidInput as error:
        if wants_block(request):
            raise
        return page(request, "training/new.html", _launch_page(session, form, error), status=error.status)
    return see_other(f"/runs/{run.id}", "The training run is queued.")


def _launch_page(session: Session, shown: TrainingRequest, error: InvalidInput | None = None) -> LaunchPage:
    base = PRESETS[shown.preset].configuration if shown.preset in PRESETS else TrainingConfiguration()
    try:
        configuration = resolve_configuration(shown.preset, shown.configuration)
    except InvalidInput:
        configuration = base
    versions = queries.trainable_versions(session)
    chosen = next((version for version in versions if version.id == shown.version_id), next(iter(versions), None))
    environment = chosen.environment.name if chosen else "ENVIRONMENT"
    return LaunchPage(
        versions=versions,
        version_id=shown.version_id,
        presets=list(PRESETS),
        preset=shown.preset or "",
        sections=launch_sections(configuration, flatten(shown.configuration)),
        rollouts=configuration.total_rollouts,
        command=launch_command(environment, shown.preset, changed_choices(configuration, base)),
        name=shown.name or "",
        without_certificate=shown.without_certificate or "",
        key=shown.key or new_id().hex,
        errors=error.fields if error else {},
        message=error.message if error else "",
    )


@dataclass(frozen=True, slots=True)
class CheckpointsPage:
    """All checkpoints, newest first."""

    checkpoints: list[Checkpoint]
    next: str | None
    is_best: bool


@router.get("/checkpoints", response_class=HTMLResponse)
def list_checkpoints(
    request: Request, session: SessionDep, _: Viewer, best: bool = False, after: After = None
) -> HTMLResponse:
    found = queries.checkpoints(session, is_best=True if best else None, after=after)
    context = CheckpointsPage(found.items, found.next, best)
    return page(request, "training/checkpoints.html", context, block="checkpoint_table")


@router.post("/exports", response_class=HTMLResponse)
def start_export(session: SessionDep, actor: Trainer, checkpoint_id: Annotated[uuid.UUID, Form()]) -> Response:
    export = service.start_export(session, actor, queries.get_checkpoint(session, checkpoint_id))
    return see_other(f"/exports/{export.id}")


@dataclass(frozen=True, slots=True)
class ExportPage:
    """One export: its progress, then its passport and model card."""

    export: Export


@router.get("/exports/{export_id}", response_class=HTMLResponse)
def show_export(request: Request, export_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "training/export.html", ExportPage(queries.get_export(session, export_id)))


@router.get("/exports/{export_id}/events", response_class=EventSourceResponse)
async def export_events(request: Request, export_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        export = queries.get_export(session, export_id)
        blocks = {"export_state": render_block(request, "training/export.html", "export_state", ExportPage(export))}
        if export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING}:
            blocks[END] = ""
        return blocks

    async for event in live(request, (f"export:{export_id}",), render):
        yield event


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    return downloads.export_zip(queries.get_export(session, export_id))
