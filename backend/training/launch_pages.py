"""Pages of a training run that is about to be: the launch form and its configuration file."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.errors import InvalidInput
from backend.training import service
from backend.training.configuration_file import Format, download, file_of_plan, file_of_run
from backend.training.launch_queries import get_training_run
from backend.training.launch_view import LaunchFiguresPage, figures_of_form, launch_page
from backend.training.preflight import start_preflight
from backend.training.schemas import TrainingRequest, read_training_form, read_training_query, resolve_configuration
from backend.training.service import version_of_request
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.page import page, render_block, see_other, wants_block

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
