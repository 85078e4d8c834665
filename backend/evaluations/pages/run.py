"""/runs/{id}: the live overview of one run, its curves, and the buttons that stop and resume it."""

import time
import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, Run
from backend.domain.vocabulary import Phase, RunKind
from backend.evaluations import points, queries, rollout_queries, service
from backend.evaluations.charts import Chart, charts_of, series_of
from backend.evaluations.figures import ColumnFigures, Outcomes, Scope, column_figures, outcomes
from backend.evaluations.pages.header import RunHeader, head_blocks, run_header
from backend.events import run_topic
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.pages import page, render_block, see_other
from backend.web.shared import Shared
from backend.web.streams import AGAIN, END, live

router = APIRouter()
TEMPLATE = "runs/overview.html"
NEWEST = 6


class ScopeChoice(BaseModel):
    """Which rollouts of a training run the figures are about."""

    phase: Phase | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What a run amounts to, as of now."""

    head: RunHeader
    run: Run
    choice: str
    """What was chosen to look at, as a query string for the live stream."""
    all: Outcomes
    """Of the whole run."""
    scope: Scope
    scoped: Outcomes
    """Of the rollouts that the figures are about; the same as `all` where they are about all."""
    columns: list[ColumnFigures]
    """The reward first."""
    newest: Sequence[rollout_queries.Listed]
    checkpoints: Sequence[Checkpoint]
    charts: Sequence[Chart]
    more_charts: Sequence[Chart]

    rollouts_url: str
    """The list of the rollouts that the figures are about; more may be appended with `&`."""
    levels: list[int]


@dataclass(frozen=True, slots=True)
class News:
    """What changes with every batch."""

    head: RunHeader
    points: str
    """Of a training run: changes when its curves have more to fetch."""


_news: Shared[News] = Shared()
_overviews: Shared[OverviewPage] = Shared()
"""Of the runs that somebody watches: folding a big run's figures takes a while."""


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def show_run(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, choice: Annotated[ScopeChoice, Query()]
) -> HTMLResponse:
    return page(request, TEMPLATE, _overview(session, run_id, choice, with_charts=True), block="run_figures")


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def run_events(
    request: Request, run_id: uuid.UUID, _: Viewer, choice: Annotated[ScopeChoice, Query()]
) -> AsyncIterable[ServerSentEvent]:
    """The overview's blocks whenever they change; `points` tells the charts that there is more to fetch."""
    topic = run_topic(run_id)
    heard: tuple[int, ...] = ()
    since = 0.0

    def render(session: Session) -> dict[str, str]:
        nonlocal heard, since
        before, heard = heard, request.app.state.hub.mark(topic)
        if heard != before:
            since = time.monotonic()
        news, _ = _news.read(run_id, since, lambda: _read_news(session, run_id), is_urgent=True)
        run = news.head.run
        overview, again = _overviews.read(
            (run_id, choice.phase, choice.step),
            time.monotonic() if run.status.is_over else since,
            lambda: _overview(session, run_id, choice, with_charts=False),
            is_urgent=run.status.is_over,
        )
        blocks = head_blocks(request, news.head) | _blocks(request, overview)
        if run.kind is RunKind.TRAINING:
            blocks["points"] = news.points
        if news.head.is_settled:
            blocks[END] = ""
        elif again:
            blocks[AGAIN] = str(again)
        return blocks

    async for event in live(request, (topic,), render):
        yield event


def _read_news(session: Session, run_id: uuid.UUID) -> News:
    run = queries.get_run(session, run_id)
    curves = ""
    if run.kind is RunKind.TRAINING:
        curves = escape(f"{run.attempt} {run.progress.get('done')} {points.latest_steps(session, run_id)}", quote=False)
    return News(run_header(session, run), curves)


def _blocks(request: Request, context: OverviewPage) -> dict[str, str]:
    names = ["run_outcome", "run_figures", "run_newest"]
    if context.run.kind is RunKind.TRAINING:
        names.append("run_checkpoints")
    return {name: render_block(request, TEMPLATE, name, context) for name in names}


class PointsQuery(BaseModel):
    """Which curves, and which part of them."""

    chart: str
    after: int | None = None
    low: int | None = None
    high: int | None = None


@router.get("/runs/{run_id}/points.json")
def run_points(
    run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[PointsQuery, Query()]
) -> dict[str, Any]:
    run = queries.get_run(session, run_id)
    series = series_of(run, points.latest_steps(session, run_id), wanted.chart)
    return points.columnar_points(session, run_id, series, points.Window(wanted.after, wanted.low, wanted.high))


@router.post("/runs/{run_id}/stop", response_class=HTMLResponse)
def stop_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    service.request_stop(session, actor, queries.get_run(session, run_id))
    return see_other(f"/runs/{run_id}", "Stopping after what is in flight.")


@router.post("/runs/{run_id}/resume", response_class=HTMLResponse)
def resume_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    service.resume_run(session, actor, queries.get_run(session, run_id))
    return see_other(f"/runs/{run_id}", "Queued again; it goes on where it stopped.")


def _overview(session: Session, run_id: uuid.UUID, choice: ScopeChoice, *, with_charts: bool) -> OverviewPage:
    run = queries.get_run(session, run_id)
    is_training = run.kind is RunKind.TRAINING
    everything = outcomes(session, Scope(run.id))
    scope = _scope(run, everything, choice)
    figures = column_figures(session, run, scope)
    main, more = charts_of(run, points.latest_steps(session, run.id)) if is_training and with_charts else ([], [])
    return OverviewPage(
        head=run_header(session, run),
        run=run,
        choice=urlencode(choice.model_dump(mode="json", exclude_none=True)),
        all=everything,
        scope=scope,
        scoped=everything if scope.phase is None else outcomes(session, scope),
        columns=figures,
        newest=rollout_queries.newest(session, run, NEWEST),
        checkpoints=queries.checkpoints(session, run_id=run.id) if is_training else (),
        charts=main,
        more_charts=more,
        rollouts_url=f"/runs/{run.id}/rollouts?{_query(scope)}",
        levels=sorted(figures[0].by_level),
    )


def _scope(run: Run, everything: Outcomes, choice: ScopeChoice) -> Scope:
    """What the figures are about: of a training run its newest held-out examination, unless chosen otherwise."""
    if run.kind is not RunKind.TRAINING:
        return Scope(run.id)
    phase = choice.phase
    if phase is None:
        phase = next((each for each in (Phase.HELDOUT, Phase.TRAIN, Phase.WARM_UP) if each in everything.phases), None)
    step = choice.step if choice.step is not None else everything.latest.get(phase or "")
    return Scope(run.id, phase, step)


def _query(scope: Scope) -> str:
    chosen = {"phase": scope.phase and str(scope.phase), "step": scope.step, "limit": 50}
    return urlencode({name: value for name, value in chosen.items() if value is not None})
