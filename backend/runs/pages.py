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

from backend.checkpoints.tables import Checkpoint
from backend.core.events import run_topic
from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.review.judged_curve import JudgedPoint
from backend.domain.rollouts.fields import column_field_name
from backend.domain.vocabulary import RunKind
from backend.results.groups import TaskEnd, task_ends
from backend.results.run_figures import FiguresRequest, RunFigures, run_figures
from backend.review.judged_curves import curve_of
from backend.rollouts import queries as rollout_queries
from backend.rollouts.listing import ListedRollout
from backend.runs import metric_points as points
from backend.runs import queries, service
from backend.runs.branch_curves import points_beside_source
from backend.runs.charts import Chart, charts_of, series_of
from backend.runs.header import RunHeader, head_blocks, run_header
from backend.runs.tables import Run
from backend.studies.patterns import known_onsets
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.page import page, render_block, see_other
from backend.web.shared import Shared
from backend.web.streams import AGAIN, END, live

router = APIRouter()
TEMPLATE = "runs/overview.html"
NEWEST = 6
TASK_ENDS = 5
"""Of the hardest and of the easiest tasks."""


@dataclass(frozen=True, slots=True)
class RolloutLinks:
    """Addresses of the rollouts behind a figure: a filter within what the figures are about."""

    run_id: uuid.UUID
    within: str = ""
    """The filter of what the figures are about; empty: the whole run."""

    def to(self, expression: str = "", *, is_scoped: bool = True) -> str:
        where = " and ".join(part for part in (self.within if is_scoped else "", expression) if part)
        return f"/runs/{self.run_id}/rollouts" + (f"?{urlencode({'where': where})}" if where else "")

    def equal(self, field: str, value: object) -> str:
        return self.to(f"{field} = {value}")

    def between(self, column: str, low: float, high: float) -> str:
        """One bar of a column's distribution."""
        name = _field(column)
        if low == high:
            return self.to(f"{name} = {low:.9g}")
        return self.to(f"{name} >= {low:.9g} and {name} <= {high:.9g}")

    def succeeding(self, rule: SuccessRule) -> str:
        return self.to(f"{_field(rule.column)} >= {rule.at_least:g}")

    def failing(self, rule: SuccessRule) -> str:
        """Completed, and yet no success."""
        return self.to(f"status = completed and {_field(rule.column)} < {rule.at_least:g}")

    def failures(self, kind: str) -> str:
        """Failed rollouts of the whole run."""
        return self.to(f"status = failed and error_kind = {kind}", is_scoped=False)


def _field(column: str) -> str:
    """How a filter calls a reward column whose name every run's rollouts have a field of."""
    return column if column == REWARD else column_field_name(column)


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What a run amounts to, as of now."""

    head: RunHeader
    run: Run
    choice: str
    """What was chosen to look at, as a query string for the live stream."""
    figures: RunFigures
    links: RolloutLinks
    """To rollouts of the scope."""
    hardest: Sequence[TaskEnd]
    easiest: Sequence[TaskEnd]
    newest: Sequence[ListedRollout]
    checkpoints: Sequence[Checkpoint]
    charts: Sequence[Chart]
    more_charts: Sequence[Chart]
    rules: Sequence[str]
    """What may decide about success: the reward and its columns."""
    judged: JudgedPoint | None = None
    """Of an evaluation: its mean reward as judged."""
    screened: int = 0
    """Of a training run: how often a detector kept a rollout out of the gradient."""
    onsets: Sequence[dict[str, int | str]] = ()
    """Of a training run: where a confirmed pattern began, as its charts mark it."""


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
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, choice: Annotated[FiguresRequest, Query()]
) -> HTMLResponse:
    return page(request, TEMPLATE, _overview(session, run_id, choice, with_charts=True), block="run_figures")


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def run_events(
    request: Request, run_id: uuid.UUID, _: Viewer, choice: Annotated[FiguresRequest, Query()]
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
            (run_id, choice),
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
    return points_beside_source(session, run, series, points.Window(wanted.after, wanted.low, wanted.high))


@router.post("/runs/{run_id}/stop", response_class=HTMLResponse)
def stop_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    service.request_stop(session, actor, queries.get_run(session, run_id))
    return see_other(f"/runs/{run_id}", "Stopping. What is finished is kept.")


@router.post("/runs/{run_id}/resume", response_class=HTMLResponse)
def resume_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    service.resume_run(session, actor, queries.get_run(session, run_id))
    return see_other(f"/runs/{run_id}", "Queued again; it goes on where it stopped.")


def _charts(session: Session, run: Run, *, is_screened: bool) -> tuple[list[Chart], list[Chart]]:
    return charts_of(run, points.latest_steps(session, run.id), is_screened=is_screened)


def _overview(session: Session, run_id: uuid.UUID, choice: FiguresRequest, *, with_charts: bool) -> OverviewPage:
    run = queries.get_run(session, run_id)
    is_training = run.kind is RunKind.TRAINING
    figures = run_figures(session, run, choice)
    hardest, easiest = task_ends(session, figures.scope, TASK_ENDS) if figures.scoped.completed else ([], [])
    head = run_header(session, run)
    screened = queries.count_screened(session, run.id) if is_training else 0
    main, more = _charts(session, run, is_screened=screened > 0) if is_training and with_charts else ([], [])
    return OverviewPage(
        head=head,
        run=run,
        choice=urlencode(choice.model_dump(mode="json", exclude_none=True)),
        figures=figures,
        links=RolloutLinks(run.id, figures.scope.expression),
        hardest=hardest,
        easiest=easiest,
        newest=rollout_queries.newest(session, run, NEWEST),
        checkpoints=queries.checkpoints(session, run_id=run.id) if is_training else (),
        charts=main,
        more_charts=more,
        rules=[REWARD, *(name for name in run.columns if name != REWARD)],
        screened=screened,
        judged=next(iter(curve_of(session, run)), None) if head.has_verdicts and not is_training else None,
        onsets=[onset.as_mark() for onset in known_onsets(session, run.id)] if is_training and with_charts else (),
    )
