"""Pages before a training run starts: the launch page, its configuration file and the pre-flight."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import preflight_topic
from backend.domain.ids import new_id
from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding
from backend.domain.vocabulary import CheckStatus
from backend.environments.tables import Certificate
from backend.errors import InvalidInput
from backend.training import service
from backend.training.choices import changed_choices
from backend.training.configuration_file import Format, download, file_of_plan, file_of_run
from backend.training.launch import LaunchFiguresPage, figures_of_form, launch_command, launch_page
from backend.training.preflight import configuration_of, findings_of, start_preflight, verdict_of
from backend.training.queries import find_certificate, get_preflight, get_training_run
from backend.training.schemas import TrainingRequest, read_training_form, read_training_query, resolve_configuration
from backend.training.service import version_of_request
from backend.training.tables import Preflight
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.page import page, render_block, see_other, wants_block
from backend.web.streams import live_blocks

router = APIRouter()

Asked = Annotated[TrainingRequest, Depends(read_training_query)]
Filled = Annotated[TrainingRequest, Depends(read_training_form)]


@router.get("/training/new", response_class=HTMLResponse)
def new_training(request: Request, session: SessionDep, _: Trainer, asked: Asked) -> HTMLResponse:
    """Filled in from the address: a preset, single choices, a run to do again, a pre-flight."""
    return page(request, "training/new.html", launch_page(session, asked))


@router.post("/training/new", response_class=HTMLResponse)
def look_at_choices(request: Request, session: SessionDep, _: Trainer, form: Filled) -> HTMLResponse:
    """What the choices amount to, before anything is started: a block while somebody types, the page without script."""
    if wants_block(request):
        context = LaunchFiguresPage(figures_of_form(session, form))
        return HTMLResponse(render_block(request, "training/new.html", "launch_figures", context))
    return page(request, "training/new.html", launch_page(session, form))


@router.post("/training", response_class=HTMLResponse)
def start_training(request: Request, session: SessionDep, actor: Trainer, form: Filled) -> Response:
    try:
        run = service.start_training(session, actor, form)
    except InvalidInput as error:
        return _refused(request, session, form, error)
    return see_other(f"/runs/{run.id}", "The training run is queued.")


@router.post("/training/preflights", response_class=HTMLResponse)
def begin_preflight(request: Request, session: SessionDep, actor: Trainer, form: Filled) -> Response:
    try:
        preflight = start_preflight(session, actor, form)
    except InvalidInput as error:
        return _refused(request, session, form, error)
    return see_other(f"/training/preflights/{preflight.id}")


def _refused(request: Request, session: SessionDep, form: TrainingRequest, error: InvalidInput) -> Response:
    """At its fields; without script the whole form with what was typed."""
    if wants_block(request):
        raise error
    return page(request, "training/new.html", launch_page(session, form, error), status=error.status)


@router.get("/training/configuration.{form}")
def download_configuration(form: Format, session: SessionDep, _: Trainer, asked: Asked) -> Response:
    """The file of the choices in the address."""
    version = version_of_request(session, asked)
    configuration = resolve_configuration(asked.preset, asked.configuration)
    told = {"name": asked.name or "", "without_certificate": asked.without_certificate or ""}
    return download(file_of_plan(version, configuration, **told), form)


@router.get("/runs/{run_id}/configuration.{form}")
def download_run_configuration(run_id: uuid.UUID, form: Format, session: SessionDep, _: Viewer) -> Response:
    """The file that starts the same training run again."""
    return download(file_of_run(get_training_run(session, run_id)), form)


@dataclass(frozen=True, slots=True)
class PreflightPage:
    """A look at a training run before it is queued."""

    preflight: Preflight
    findings: Sequence[PreflightFinding]
    verdict: FindingStatus
    is_over: bool
    arithmetic: Sequence[str]
    command: str
    needs_reason: bool
    """There is no passing certificate: starting asks why."""
    key: str


def _context(session: Session, preflight_id: uuid.UUID) -> PreflightPage:
    preflight = get_preflight(session, preflight_id)
    configuration = configuration_of(preflight)
    version = preflight.version
    environment = f"{version.environment.name}@{version.number}"
    return PreflightPage(
        preflight=preflight,
        findings=findings_of(preflight),
        verdict=verdict_of(preflight),
        is_over=preflight.status.is_over,
        arithmetic=batch_in_words(configuration).split("; "),
        command=launch_command(environment, None, changed_choices(configuration, TrainingConfiguration())),
        needs_reason=_needs_reason(find_certificate(session, version.id)),
        key=new_id().hex,
    )


def _needs_reason(certificate: Certificate | None) -> bool:
    return certificate is None or certificate.status is CheckStatus.FAILED


@router.get("/training/preflights/{preflight_id}", response_class=HTMLResponse)
def show_preflight(request: Request, preflight_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "training/preflight.html", _context(session, preflight_id))


@router.get("/training/preflights/{preflight_id}/events", response_class=EventSourceResponse)
async def preflight_events(request: Request, preflight_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> PreflightPage:
        return _context(session, preflight_id)

    blocks = ("preflight_state", "preflight_findings")
    async for event in live_blocks(request, (preflight_topic(preflight_id),), "training/preflight.html", blocks, read):
        yield event


@router.get("/training/lessons{rest:path}")
def redirect_lessons(rest: str, _: Viewer) -> Response:
    """The old address of training examples."""
    return RedirectResponse(f"/training/examples{rest}", status_code=301)
