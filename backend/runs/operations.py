"""Start evaluations; list, watch, stop and resume runs of every kind."""

from collections.abc import Iterator

from pydantic import Field
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation
from backend.operations.schemas import Download, Request
from backend.runs import charts, evaluations, queries, service
from backend.runs import references as _references  # noqa: F401  how addresses name runs
from backend.runs.curves import CurvesRequest, CurvesResponse, curve_rows, read_curves, requested_runs
from backend.runs.metric_points import latest_steps
from backend.runs.schemas import (
    ArchiveRuns,
    EvaluationRequest,
    LogLineResponse,
    RunDetailResponse,
    RunFilter,
    RunResponse,
    TagRuns,
    UpdateRun,
)
from backend.runs.tables import Run
from backend.web.csv_files import csv_lines
from backend.web.identity import Actor
from backend.web.paging import Page


@operation(
    "POST /evaluations",
    role=Role.AUTHOR,
    in_project=True,
    noun="runs",
    status=201,
    tool=True,
    poll="/runs/{id}",
    audited=False,
)
def start_evaluation(session: Session, actor: Actor, request: EvaluationRequest) -> RunDetailResponse:
    """Start an evaluation of a policy on an environment version. Repeating a `key` returns the run it started first."""
    run = evaluations.start_evaluation(session, actor, request)
    return RunDetailResponse.of(queries.get_run(session, run.id))


@operation("GET /runs", role=Role.VIEWER, command="runs", tool=True)
def list_runs(session: Session, actor: Actor, request: RunFilter) -> Page[RunResponse]:
    """List runs, newest first."""
    found = queries.runs(session, request, actor.project_id)
    return Page(items=[RunResponse.of(run) for run in found.items], next=found.next)


@operation("GET /runs/{run}", role=Role.VIEWER, tool=True, poll="/runs/{id}")
def get_run(session: Session, actor: Actor, run: Run) -> RunDetailResponse:
    """Show a run with its progress, configuration and summary."""
    return RunDetailResponse.of(run)


@operation(
    "PATCH /runs/{run}",
    role=Role.AUTHOR,
    command="run update",
    waits=False,
    tool=True,
    poll="/runs/{id}",
    page="/runs/{id}/configuration",
    notice="The run was changed.",
)
def update_run(session: Session, actor: Actor, run: Run, request: UpdateRun) -> RunDetailResponse:
    """Rename a run, tag it, pin it or write a note about it."""
    service.update_run(session, run, request)
    return RunDetailResponse.of(run)


@operation("POST /runs/tags", role=Role.AUTHOR, in_project=True, command="run tag", tool=True)
def tag_runs(session: Session, actor: Actor, request: TagRuns) -> Page[RunResponse]:
    """Add tags to several runs or remove them, and pin or unpin the runs."""
    runs = queries.runs_by_id(session, request.runs)
    service.tag_runs(session, runs, request.add, request.remove, is_pinned=request.is_pinned)
    return Page(items=[RunResponse.of(run) for run in queries.find_runs(session, request.runs)])


@operation("POST /runs/archive", role=Role.AUTHOR, in_project=True, command="run archive", tool=True)
def archive_runs(session: Session, actor: Actor, request: ArchiveRuns) -> Page[RunResponse]:
    """Archive runs, or take them out of the archive. Lists omit archived runs; they can be read and used as before."""
    service.archive_runs(session, queries.runs_by_id(session, request.runs), is_archived=request.archived)
    return Page(items=[RunResponse.of(run) for run in queries.find_runs(session, request.runs)])


@operation(
    "POST /runs/{run}/stop",
    role=Role.AUTHOR,
    command="run stop",
    waits=False,
    tool=True,
    poll="/runs/{id}",
    audited=False,
    page="/runs/{id}",
    notice="Stopping. Finished work is kept.",
)
def stop_run(session: Session, actor: Actor, run: Run) -> RunResponse:
    """Request a run to stop. An evaluation cancels its current rollouts; other runs finish theirs first.

    A stopped run can be resumed. Training runs need the role trainer.
    """
    service.request_stop(session, actor, run)
    return RunResponse.of(run)


@operation(
    "POST /runs/{run}/resume",
    role=Role.AUTHOR,
    command="run resume",
    waits=False,
    tool=True,
    poll="/runs/{id}",
    audited=False,
    page="/runs/{id}",
    notice="Queued again. The run continues where it stopped.",
)
def resume_run(session: Session, actor: Actor, run: Run) -> RunResponse:
    """Queue a stopped, paused or failed run again. It continues where it stopped."""
    service.resume_run(session, actor, run)
    return RunResponse.of(run)


class PointsQuery(charts.Window):
    """Metrics and range of steps."""

    name: list[str] = Field([], max_length=100, description="Metrics, such as `reward`. Default: all.")


@operation("GET /runs/{run}/points", role=Role.VIEWER, tool=True)
def get_points(session: Session, actor: Actor, run: Run, request: PointsQuery) -> dict[str, object]:
    """Return curves as columns: `{"x": [steps], "series": [{"label", "unit", "values"}], "cursor"}`.

    Beyond 4,000 points, each bucket keeps its minimum and maximum.
    """
    names = request.name or list(latest_steps(session, run.id))
    return charts.columnar_points(session, run, [charts.Series(name, name) for name in names], request)


@operation("GET /curves", role=Role.VIEWER, tool=True)
def get_curves(session: Session, actor: Actor, request: CurvesRequest) -> CurvesResponse:
    """Return metrics of several runs for one chart, by step, tokens, rollouts or time, smoothed and thinned.

    Runs that differ only in their seed can be drawn as their mean with a band. Curves with more points than requested
    keep the minimum and maximum of each bucket; request a range of x for all of its points.
    """
    return read_curves(session, request)


@operation("GET /curves/file", role=Role.VIEWER)
def download_curves(session: Session, actor: Actor, request: CurvesRequest) -> Download:
    """Download the stored points of these metrics as CSV: every point of the range, not smoothed."""
    requested_runs(session, request)  # refuses what does not exist, before the file is sent

    def content(own: Session) -> Iterator[bytes]:
        yield from csv_lines(("run", "name", "metric", "step", request.x.label, "value"), curve_rows(own, request))

    return Download("curves.csv", "text/csv; charset=utf-8", content)


class LogQuery(Request):
    before: int | None = Field(None, description="Only lines before the line with this id.")


@operation("GET /runs/{run}/log", role=Role.VIEWER)
def get_log(session: Session, actor: Actor, run: Run, request: LogQuery) -> Page[LogLineResponse]:
    """Return the newest lines of the log, oldest first. The first line's `id` as `before` returns earlier lines."""
    return Page(items=[LogLineResponse.of(line) for line in queries.log_lines(session, run.id, before=request.before)])
