"""/runs and /runs/{id}: the list, the live overview of one run, and its curves."""

import threading
import time
import uuid
from collections.abc import AsyncIterable
from html import escape
from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import RUNS, Hub, topic_of
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import Environment
from backend.errors import InvalidInput
from backend.projects.queries import get_project
from backend.projects.schemas import MoveItems
from backend.projects.service import move_items
from backend.results.run_figures import FiguresRequest
from backend.rollouts.item_list import item_list
from backend.rollouts.tables import Listing
from backend.runs import queries
from backend.runs.charts import Window, charts_of, columnar_points
from backend.runs.curves import CurvesRequest, curve_rows
from backend.runs.fields import RUN_TABLE
from backend.runs.header import RunHeader, head_blocks, run_header
from backend.runs.metric_points import latest_steps
from backend.runs.overview import run_overview
from backend.runs.schemas import BulkRuns, RunListQuery
from backend.runs.service import archive_runs, request_stop, tag_runs
from backend.web.csv_files import csv_response
from backend.web.dependencies import ElsewhereAuthor, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, render_block, see_other
from backend.web.shared import Shared
from backend.web.streams import AGAIN, END, live, live_page

router = APIRouter()
OVERVIEW = "runs/overview.html"


class ChartQuery(Window):
    chart: str


_rendering = threading.Lock()
"""Streams that one event wakes render one after another. Taking turns, all of them would be as late as the last."""
_updates: Shared[tuple[RunHeader, str]] = Shared()
_overviews: Shared[dict[str, object]] = Shared()
"""Overviews of the watched runs: aggregating the figures of a big run takes a while."""


@live_page(router, "/runs", "runs/list.html", "run_table", topics=[RUNS], swapped="run_table")
def list_runs(
    session: SessionDep,
    actor: Viewer,
    wanted: Annotated[RunListQuery, Query()],
    show: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006
    deleted_view: uuid.UUID | None = None,
    selected: Annotated[list[uuid.UUID], Query(max_length=500)] = [],  # noqa: B006
) -> dict[str, object]:
    names = session.scalars(select(Environment.name).order_by(Environment.name)).all()
    choices = {"environments": names, "kinds": tuple(RunKind), "statuses": tuple(RunStatus)}
    return {
        **item_list(
            session,
            actor,
            RUN_TABLE,
            Listing.RUNS,
            wanted,
            show,
            lambda query, columns: queries.list_runs(session, query, columns, actor.project_id),
        ),
        "selected": set(selected),
        "deleted_view": deleted_view,
        **choices,
    }


@router.post("/runs/bulk")
def change_selected_runs(
    session: SessionDep, actor: ElsewhereAuthor, form: Annotated[BulkRuns, Depends(read_form(BulkRuns))]
) -> Response:
    """Change the selected runs and show the same list with the same selection."""
    if not form.run:
        raise InvalidInput("Select at least one run.")
    if form.choice == "compare":
        return see_other("/compare?" + urlencode([("run", run_id) for run_id in form.run]))
    if form.choice == "delete":
        return see_other("/deletions/new?" + urlencode([("run", run_id) for run_id in form.run]))
    runs = queries.runs_by_id(session, form.run)
    if form.choice in ("archive", "unarchive"):
        archive_runs(session, runs, is_archived=form.choice == "archive")
        many = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        notice = f"Archived {many}." if form.choice == "archive" else f"{many} back in the list."
    elif form.choice == "move":
        project = get_project(session, form.project)
        request = MoveItems(runs=[str(run.id) for run in runs])
        notice = f"Moved to {move_items(session, actor.within(project.id), project, request).project}."
    elif form.choice == "stop":
        active = [run for run in runs if not run.status.is_over]
        for run in active:
            request_stop(session, actor.within(run.project_id), run)
        notice = f"Stopping {len(active)} of {len(runs)} runs; the others have ended."
    elif form.choice in ("pin", "unpin"):
        tag_runs(session, runs, [], [], is_pinned=form.choice == "pin")
        notice = f"{form.choice.title()}ned {len(runs)} run{'s' * (len(runs) > 1)}."
    else:
        if not form.tag:
            raise InvalidInput(fields={"tag": "Write a tag, or several separated by commas."})
        is_added = form.choice == "tag"
        tag_runs(session, runs, form.tag if is_added else [], [] if is_added else form.tag)
        notice = f"{'Added' if is_added else 'Removed'} {', '.join(form.tag)}: {len(runs)} run{'s' * (len(runs) > 1)}."
    if form.back:
        return see_other(f"/runs/{form.back}", notice)
    kept = [(name, value) for name, value in parse_qsl(form.query) if name != "selected"]
    return see_other("/runs?" + urlencode([*kept, *(("selected", run.id) for run in runs)]), notice)


@router.get("/runs/{run_id}", response_class=HTMLResponse)
def show_run(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, choice: Annotated[FiguresRequest, Query()]
) -> HTMLResponse:
    return page(request, OVERVIEW, run_overview(session, run_id, choice, with_charts=True), block="run_figures")


@router.get("/runs/{run_id}/events", response_class=EventSourceResponse)
async def run_events(
    request: Request, run_id: uuid.UUID, _: Viewer, choice: Annotated[FiguresRequest, Query()]
) -> AsyncIterable[ServerSentEvent]:
    """Send the overview's blocks when they change. `points` makes the charts fetch more points."""
    topic = topic_of("run", run_id)
    hub: Hub = request.app.state.hub
    opened_at = time.monotonic()

    def render(session: Session) -> dict[str, str]:
        since = max(opened_at, hub.heard_at(topic))
        (head, points), _ = _updates.read(run_id, since, lambda: _read_update(session, run_id), is_urgent=True)
        run = head.run
        overview, again = _overviews.read(
            (run_id, choice),
            time.monotonic() if run.status.is_over else since,
            lambda: run_overview(session, run_id, choice, with_charts=False),
            is_urgent=run.status.is_over,
        )
        names = ["run_outcome", "run_figures", "run_newest"]
        if run.kind is RunKind.TRAINING:
            names += ["run_recipe", "run_checkpoints"]
        with _rendering:
            blocks = head_blocks(request, head)
            blocks |= {name: render_block(request, OVERVIEW, name, overview) for name in names}
        if run.kind is RunKind.TRAINING:
            blocks["points"] = points
        if head.is_settled:
            blocks[END] = ""
        elif again:
            blocks[AGAIN] = str(again)
        return blocks

    async for event in live(request, (topic,), render):
        yield event


def _read_update(session: Session, run_id: uuid.UUID) -> tuple[RunHeader, str]:
    """The part of the overview that changes with every batch. The text changes when there are more points to fetch."""
    run = queries.get_run(session, run_id)
    points = ""
    if run.kind is RunKind.TRAINING:
        latest = latest_steps(session, run_id)
        points = escape(f"{run.attempt} {run.progress.get('done')} {latest}", quote=False)
    return run_header(session, run), points


@router.get("/runs/{run_id}/points.json")
def run_points(
    run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[ChartQuery, Query()]
) -> dict[str, object]:
    run = queries.get_run(session, run_id)
    main, more = charts_of(run, latest_steps(session, run_id))
    series = next((chart.series for chart in [*main, *more] if chart.key == wanted.chart), ())
    return columnar_points(session, run, series, wanted, with_source=True)


@router.get("/runs/{run_id}/points.csv")
def download_points(
    run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[ChartQuery, Query()]
) -> Response:
    """The stored points of a chart, every one of them. It is held in memory, as one run's curves are small."""
    run = queries.get_run(session, run_id)
    main, more = charts_of(run, latest_steps(session, run_id))
    names = [each.name for chart in [*main, *more] if chart.key == wanted.chart for each in chart.series]
    request = CurvesRequest(run=[str(run_id)], low=wanted.low, high=wanted.high).model_copy(update={"curve": names})
    rows = curve_rows(session, request) if names else iter(())
    return csv_response(wanted.chart, ("run", "name", "metric", "step", request.x.label, "value"), rows)
