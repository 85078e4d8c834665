"""The JSON API of evaluations and runs."""

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from backend.runs import metric_points, queries, service
from backend.runs.requests import EvaluationRequest, RunFilter
from backend.runs.responses import LogLineAnswer, RunAnswer, RunDetailAnswer
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1")


@router.post("/evaluations", status_code=201, tags=["runs"])
def start_evaluation(session: SessionDep, actor: Author, request: EvaluationRequest) -> RunDetailAnswer:
    """Start an evaluation. The same `key` again answers the run that it started first."""
    run = service.start_evaluation(session, actor, request)
    return RunDetailAnswer.of(queries.get_run(session, run.id))


@router.get("/runs", tags=["runs"])
def list_runs(session: SessionDep, _: Viewer, wanted: Annotated[RunFilter, Query()]) -> Page[RunAnswer]:
    """Newest first."""
    found = queries.runs(session, wanted)
    return Page(items=[RunAnswer.of(run) for run in found.items], next=found.next)


@router.get("/runs/{run_id}", tags=["runs"])
def get_run(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> RunDetailAnswer:
    return RunDetailAnswer.of(queries.get_run(session, run_id))


@router.post("/runs/{run_id}/stop", tags=["runs"])
def stop_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> RunAnswer:
    """Ask a run to stop: an evaluation cancels its rollouts under way, others finish theirs first.

    Training runs need the role trainer.
    """
    run = queries.get_run(session, run_id)
    service.request_stop(session, actor, run)
    return RunAnswer.of(run)


@router.post("/runs/{run_id}/resume", tags=["runs"])
def resume_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> RunAnswer:
    """Queue a stopped, paused or failed run again; it goes on where it stopped."""
    run = queries.get_run(session, run_id)
    service.resume_run(session, actor, run)
    return RunAnswer.of(run)


class PointsQuery(BaseModel):
    """Which curves, and which part of them."""

    name: list[str] = Field(default=[], max_length=100)
    """Names of metrics, e.g. `reward` or `heldout/reward`; left out: all."""
    after: int | None = None
    """Only from this step on: the `cursor` of the answer before."""
    low: int | None = None
    high: int | None = None


@router.get("/runs/{run_id}/points", tags=["runs"])
def get_points(
    run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[PointsQuery, Query()]
) -> dict[str, Any]:
    """Curves as columns, thinned to the lowest and highest of each bucket beyond 4000 points:
    `{"x": [steps], "series": [{"label", "unit", "values"}], "cursor"}`."""
    run = queries.get_run(session, run_id)
    names = wanted.name or list(metric_points.latest_steps(session, run.id))
    series = [metric_points.Series(name, name) for name in names]
    return metric_points.columnar_points(
        session, run.id, series, metric_points.Window(wanted.after, wanted.low, wanted.high)
    )


@router.get("/runs/{run_id}/log", tags=["runs"])
def get_log(run_id: uuid.UUID, session: SessionDep, _: Viewer, before: int | None = None) -> Page[LogLineAnswer]:
    """The newest lines, oldest first; the `id` of the first one as `before` leads back."""
    run = queries.get_run(session, run_id)
    lines = queries.log_lines(session, run.id, before=before)
    return Page(items=[LogLineAnswer.of(line) for line in lines])
