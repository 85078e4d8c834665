"""The list of training runs, and the pages before one starts: the launch page, its configuration, the pre-flight."""

import uuid
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import joinedload

from backend.checkpoints.queries import heldout_before_and_best
from backend.core.events import RUNS
from backend.domain.ids import new_id
from backend.domain.training.configuration import TrainingConfiguration, batch_in_words
from backend.domain.training.preflight.findings import PreflightFinding, worst
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.runs.queries import get_run, runs
from backend.runs.schemas import RunFilter
from backend.training import preflight, service
from backend.training.forms import read_training_request
from backend.training.launch import (
    Format,
    configuration_file,
    configuration_file_of,
    download_configuration,
    launch_command,
    launch_figures,
    launch_page,
)
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.setting_texts import changed_settings, stored_configuration
from backend.web.dependencies import ElsewhereTrainer, SessionDep, Trainer, Viewer
from backend.web.page import page, render_block, see_other, wants_block
from backend.web.streams import live_page

router = APIRouter()

Sent = Annotated[TrainingRequest, Depends(read_training_request)]


@live_page(router, "/training", "training/list.html", "training_table", topics=[RUNS], swapped="training_table")
def list_training(session: SessionDep, actor: Viewer, wanted: Annotated[RunFilter, Query()]) -> dict[str, object]:
    wanted = wanted.model_copy(update={"kind": None})
    found = runs(session, wanted.model_copy(update={"kind": RunKind.TRAINING}), actor.project_id)
    return {
        "runs": found.items,
        "next": found.next,
        "heldout": heldout_before_and_best(session, [run.id for run in found.items]),
        "wanted": wanted,
        "statuses": RunStatus,
        "environments": session.scalars(select(Environment.name).order_by(Environment.name)).all(),
    }


@router.api_route("/training/new", methods=["GET", "POST"], response_class=HTMLResponse)
def new_training(request: Request, session: SessionDep, _: ElsewhereTrainer, sent: Sent) -> HTMLResponse:
    """The launch form, filled in from the address: a preset, single settings, a run to repeat, a pre-flight.

    POST: its summary while it is filled in; without script, the whole page.
    """
    if request.method == "POST" and wants_block(request):
        version = session.get(EnvironmentVersion, sent.version_id, options=[joinedload(EnvironmentVersion.environment)])
        context = {"figures": launch_figures(session, sent, version, TrainingConfiguration())}
        return HTMLResponse(render_block(request, "training/new.html", "launch_figures", context))
    return page(request, "training/new.html", launch_page(session, sent))


@router.post("/training", response_class=HTMLResponse)
@router.post("/training/preflights", response_class=HTMLResponse)
def start_training(request: Request, session: SessionDep, actor: ElsewhereTrainer, form: Sent) -> Response:
    """Start a run, or only its pre-flight. Errors are at their fields; without script, in the whole form as sent."""
    try:
        if request.url.path.endswith("/preflights"):
            return see_other(f"/training/preflights/{preflight.start_preflight(session, actor, form).id}")
        run = service.start_training(session, actor, form)
    except InvalidInput as error:
        if wants_block(request):
            raise
        return page(request, "training/new.html", launch_page(session, form, error), status=error.status)
    return see_other(f"/runs/{run.id}", "The training run is queued.")


@router.get("/training/configuration.{form}")
def download_new_configuration(form: Format, session: SessionDep, _: Trainer, query: Sent) -> Response:
    """The configuration file with the settings in the address."""
    version = service.version_of_request(session, query)
    configuration = resolve_configuration(query.preset, query.configuration)
    reason = query.without_certificate or ""
    file = configuration_file(version, configuration, name=query.name or "", without_certificate=reason)
    return download_configuration(file, form)


@router.get("/runs/{run_id}/configuration.{form}")
def download_run_configuration(run_id: uuid.UUID, form: Format, session: SessionDep, _: Viewer) -> Response:
    """The configuration file that repeats the run."""
    return download_configuration(configuration_file_of(get_run(session, run_id)), form)


@live_page(
    *(router, "/training/preflights/{preflight_id}", "training/preflight.html"),
    *("preflight_state", "preflight_advice", "preflight_findings"),
    topics=["preflight:{preflight_id}"],
)
def show_preflight(session: SessionDep, _: Viewer, preflight_id: uuid.UUID) -> dict[str, object]:
    row = service.get_preflight(session, preflight_id)
    configuration = stored_configuration(row.configuration)
    findings = [PreflightFinding.model_validate(finding) for finding in row.findings]
    environment = f"{row.version.environment.name}@{row.version.number}"
    advice = preflight.advice_of(session, row)
    return {
        "preflight": row,
        "advice": advice,
        "apply": f"/training/new?{urlencode({'preflight_id': str(row.id), **advice.changes})}" if advice else "",
        "findings": findings,
        "verdict": worst(findings),
        "is_over": row.status.is_over,
        "arithmetic": batch_in_words(configuration).split("; "),
        "command": launch_command(environment, None, changed_settings(configuration, TrainingConfiguration())),
        # the version has no certificate, so starting needs a reason
        "needs_reason": row.version.certificate in {None, CheckStatus.FAILED},
        "key": new_id().hex,
    }
