"""/runs/{id}/studies: confirmed patterns and when each began, reasoning effort, and the checkpoint to roll back to."""

import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS, run_topic
from backend.errors import NotFound
from backend.runs.tables import Run
from backend.studies.queries import get_studied_run
from backend.studies.responses import run_studies, study_responses
from backend.studies.schemas import RunStudies, StartEffort
from backend.studies.service import EFFORT_TASKS, ONSET_ROLLOUTS
from backend.studies.tables import Study
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page
from backend.web.streams import live_blocks

router = APIRouter()
TEMPLATE = "studies/run.html"


@dataclass(frozen=True, slots=True)
class StudiesPage:
    run: Run
    overview: RunStudies
    is_over: bool
    defaults: StartEffort = field(default_factory=StartEffort)
    onset_rollouts: int = ONSET_ROLLOUTS
    effort_tasks: int = EFFORT_TASKS


def _read_page(run_id: uuid.UUID, session: Session) -> StudiesPage:
    run = get_studied_run(session, run_id)
    overview = run_studies(session, run)
    return StudiesPage(run, overview, overview.is_finished)


@router.get("/runs/{run_id}/studies", response_class=HTMLResponse)
def show_studies(request: Request, session: SessionDep, _: Viewer, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, TEMPLATE, _read_page(run_id, session), block="studies")


@router.get("/runs/{run_id}/studies/events", response_class=EventSourceResponse)
async def stream_studies(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    topics, read = (run_topic(run_id), RUNS), partial(_read_page, run_id)
    async for event in live_blocks(request, topics, TEMPLATE, ["studies"], read):
        yield event


@router.get("/studies/{study_id}/curve.json")
def show_curve(session: SessionDep, _: Viewer, study_id: uuid.UUID) -> dict[str, object]:
    """Columns for `static/js/chart.js`: each side's mean worth; x is the percentage of the reasoning that is kept."""
    study = session.get(Study, study_id)
    if study is None:
        raise NotFound("There is no such study.")
    (response,) = study_responses(session, get_studied_run(session, study.run_id), [study])
    series = [
        {"label": f"base: {side.name}" if side.is_base else side.name, "unit": "", "values": side.curve}
        for side in response.checkpoints
        if side.curve
    ]
    return {"x": [round(100 * each, 1) for each in response.fractions], "series": series, "replace": True}


@router.get("/runs/{run_id}/onset")
@router.get("/runs/{run_id}/effort")
def redirect_old_address(run_id: uuid.UUID, _: Viewer) -> RedirectResponse:
    return RedirectResponse(f"/runs/{run_id}/studies", status_code=301)
