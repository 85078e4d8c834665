"""/runs/{id}/effort: how much of its reasoning a checkpoint needs for its reward."""

import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS, run_topic
from backend.runs.tables import Run
from backend.studies.effort import queries, service
from backend.studies.effort.schemas import EffortRequest
from backend.studies.effort.view import EffortAnswer, ScoreAnswer, effort_of, told
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter(prefix="/runs/{run_id}/effort")
TEMPLATE = "studies/effort.html"


@dataclass(frozen=True, slots=True)
class EffortPage:
    run: Run
    effort: EffortAnswer
    defaults: EffortRequest
    tasks: int
    """That a side plays, unless said otherwise."""

    @property
    def is_over(self) -> bool:
        return not self.effort.is_open


@router.get("", response_class=HTMLResponse)
def show_effort(request: Request, session: SessionDep, _: Viewer, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, TEMPLATE, _context(session, run_id), block="effort_scores")


@router.get("/events", response_class=EventSourceResponse)
async def effort_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> EffortPage:
        return _context(session, run_id)

    async for event in live_blocks(request, (run_topic(run_id), RUNS), TEMPLATE, ["effort_scores"], read):
        yield event


@router.get("/{score_id}/curve.json")
def curve(session: SessionDep, _: Viewer, run_id: uuid.UUID, score_id: uuid.UUID) -> dict[str, Any]:
    """Columns for the chart: the mean of each side by how much of the reasoning was kept."""
    (answer,) = told(session, [queries.get_score(session, run_id, score_id)])
    return curve_of(answer)


def curve_of(score: ScoreAnswer) -> dict[str, Any]:
    """As `static/js/chart.js` reads it; x in percent of the reasoning."""
    drawn = [
        {"label": f"base: {side.name}" if side.is_base else side.name, "unit": "", "values": side.curve}
        for side in score.sides
        if side.curve
    ]
    return {"x": [round(100 * each, 1) for each in score.fractions], "series": drawn, "replace": True}


@router.post("", response_class=HTMLResponse)
def start(
    session: SessionDep,
    actor: Author,
    run_id: uuid.UUID,
    form: Annotated[EffortRequest, Depends(read_form(EffortRequest))],
) -> Response:
    service.start_score(session, actor, queries.get_run(session, run_id), form)
    return see_other(f"/runs/{run_id}/effort", "Queued: both sides play, then their replies are cut.")


@router.post("/{score_id}/stop", response_class=HTMLResponse)
def stop(session: SessionDep, actor: Author, run_id: uuid.UUID, score_id: uuid.UUID) -> Response:
    service.SCORES.stop(session, actor, queries.get_score(session, run_id, score_id))
    return see_other(f"/runs/{run_id}/effort", "Stopped. What was cut is kept.")


@router.post("/{score_id}/resume", response_class=HTMLResponse)
def resume(session: SessionDep, actor: Author, run_id: uuid.UUID, score_id: uuid.UUID) -> Response:
    service.SCORES.resume(session, actor, queries.get_score(session, run_id, score_id))
    return see_other(f"/runs/{run_id}/effort", "It goes on where it stopped.")


def _context(session: Session, run_id: uuid.UUID) -> EffortPage:
    run = queries.get_run(session, run_id)
    return EffortPage(run, effort_of(session, run), EffortRequest(), service.TASKS)
