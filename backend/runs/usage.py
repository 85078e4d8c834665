"""Tokens, money and machine time of runs. They are counted when a run ends and kept in its summary."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, and_, case, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from backend.core.tables import Job, Worker
from backend.domain.runs.capabilities import Capabilities
from backend.domain.vocabulary import JobStatus, Queue, RunKind
from backend.graders.tables import Grade, GraderRun
from backend.operations.schemas import Response
from backend.projects.tables import Project
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

USAGE = "usage"
"""Key in `Run.summary`."""
_COPIES = (RunKind.RESCORE, RunKind.REPLAY)
"""Kinds of run whose rollouts repeat the tokens of others."""


class Usage(Response):
    """What runs and graders used in a period."""

    runs: int = 0
    tokens: int = 0
    """Read and written, by policies and graders."""
    cost: float | None = None
    """US dollars at the prices of policies; null if nothing had a price."""
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0
    """Hours of runs that used no GPU, times the CPU threads of a training run."""


class ProjectUsage(Response):
    """Usage of a project in a period and in the period before."""

    project_id: uuid.UUID
    project: str
    now: Usage
    before: Usage


def count_usage(session: Session, run: Run) -> dict[str, object]:
    """Return the `usage` of a run whose attempt ends: over all its stored rollouts, and its number of GPUs."""
    sums = select(
        func.coalesce(func.sum(Rollout.tokens_in + Rollout.tokens_out), 0).label("tokens"),
        func.sum(Rollout.cost).label("cost"),
    )
    row = session.execute(sums.where(Rollout.run_id == run.id)).one()
    return {"tokens": int(row.tokens), "cost": row.cost, "gpus": _gpus(session, run)}


def _gpus(session: Session, run: Run) -> int:
    """Return the number of GPUs that the run uses on the worker that has its job."""
    hardware = run.configuration.get("hardware") or {}
    owner = select(Worker.capabilities).join(Job, func.split_part(Job.lease_owner, "/", 1) == Worker.name)
    own = (Job.run_id == run.id, Job.status == JobStatus.LEASED, Job.queue != Queue.CPU)
    capabilities = session.scalar(owner.where(*own).limit(1))
    if capabilities is None or hardware.get("device") == "cpu" or not Capabilities.of(capabilities).cuda:
        return int((run.summary.get(USAGE) or {}).get("gpus") or 0)
    return int(hardware.get("processes") or 1)


def usage_by_project(
    session: Session, starts: Sequence[datetime], until: datetime, project_id: uuid.UUID | None = None
) -> list[ProjectUsage]:
    """Return the usage between two `starts`, and from the second one to `until`, of projects that used anything.

    A run that is in both periods is divided by time. Runs that have not ended are counted from their rollouts.
    """
    earliest = min(starts)
    active: list[ColumnElement[bool]] = [
        Run.started_at.is_not(None),
        or_(Run.ended_at.is_(None), Run.ended_at >= earliest),
    ]
    if project_id is not None:
        active.append(Run.project_id == project_id)
    kept = Run.summary[USAGE]
    is_kept = and_(Run.ended_at.is_not(None), or_(kept.is_not(None), Run.summary["tokens_in"].is_not(None)))
    stored = (
        select(func.sum(Rollout.tokens_in + Rollout.tokens_out).label("tokens"), func.sum(Rollout.cost).label("cost"))
        .where(Rollout.run_id == Run.id, ~is_kept)
        .lateral()
    )
    in_summary = _number(Run.summary["tokens_in"]) + _number(Run.summary["tokens_out"])
    tokens = func.coalesce(_number(kept["tokens"]), in_summary, stored.c.tokens, 0.0)
    cost = func.coalesce(_number(kept["cost"]), _number(Run.summary["cost"]), stored.c.cost)
    is_copy = Run.kind.in_(_COPIES)
    processes = func.coalesce(_number(Run.configuration["hardware"]["processes"]), 1.0)
    declared = case((Run.configuration["hardware"]["device"].as_string() == "cuda", processes), else_=0.0)
    ended = func.coalesce(Run.ended_at, until)
    runs = (
        select(
            Run.project_id,
            Run.started_at,
            ended.label("ended_at"),
            case((is_copy, 0.0), else_=tokens).label("tokens"),
            case((is_copy, None), else_=cost).label("cost"),
            func.coalesce(_number(kept["gpus"]), declared).label("gpus"),
            func.coalesce(_number(Run.configuration["threads"]), 1.0).label("threads"),
        )
        .outerjoin(stored, literal(True))
        .where(*active)
        .subquery()
    )
    seconds = func.extract("epoch", runs.c.ended_at - runs.c.started_at)
    figures = []
    for start, end in ((starts[1], until), (starts[0], starts[1])):
        overlap = func.extract("epoch", func.least(runs.c.ended_at, end) - func.greatest(runs.c.started_at, start))
        inside = func.greatest(cast(overlap, Float), 0.0)
        share = case(
            (seconds > 0, inside / cast(seconds, Float)), (runs.c.started_at.between(start, end), 1.0), else_=0.0
        )
        figures += [
            func.count().filter(share > 0),
            func.sum(runs.c.tokens * share),
            func.sum(runs.c.cost * share).filter(share > 0),
            func.sum(runs.c.gpus * inside) / 3600,
            func.sum(runs.c.threads * inside).filter(runs.c.gpus == 0) / 3600,
        ]
    statement = select(runs.c.project_id, *figures).group_by(runs.c.project_id)
    found = {row[0]: (list(row[1:6]), list(row[6:11])) for row in session.execute(statement)}
    for owner, *graded in session.execute(_graded(starts, until, project_id)):
        periods = found.setdefault(owner, ([0, 0, None, 0, 0], [0, 0, None, 0, 0]))
        for period, spent, money in zip(periods, graded[::2], graded[1::2], strict=True):
            period[1] = (period[1] or 0) + (spent or 0)
            period[2] = period[2] if money is None else (period[2] or 0.0) + money
    projects = session.execute(select(Project.id, Project.name).where(Project.id.in_(found)))
    names = {row.id: row.name for row in projects}
    rows = [
        ProjectUsage(project_id=each, project=names[each], now=_usage(now), before=_usage(before))
        for each, (now, before) in found.items()
        if each in names and (now[0] or before[0] or now[1] or before[1])
    ]
    return sorted(rows, key=lambda row: (-row.now.tokens, row.project))


def _graded(starts: Sequence[datetime], until: datetime, project_id: uuid.UUID | None) -> Select[*tuple[Any, ...]]:
    """Sum tokens and costs of the grades since the second start, then before it, by project.

    Only the grades of work that had not ended before the first start are read.
    """
    is_now = Grade.created_at >= starts[1]
    sums = (func.sum(Grade.tokens_in + Grade.tokens_out), func.sum(Grade.cost))
    statement = (
        select(Run.project_id, *(each.filter(is_in) for is_in in (is_now, ~is_now) for each in sums))
        .join(GraderRun, GraderRun.run_id == Run.id)
        .join(Grade, and_(Grade.run_id == Run.id, Grade.grader_id == GraderRun.grader_id))
        .where(or_(GraderRun.ended_at.is_(None), GraderRun.ended_at >= starts[0]))
        .where(Grade.created_at >= starts[0], Grade.created_at < until)
        .group_by(Run.project_id)
    )
    return statement if project_id is None else statement.where(Run.project_id == project_id)


def _number(value: ColumnElement[Any]) -> ColumnElement[float]:
    """The number at a place of a JSON column; null if something else is there."""
    return case((func.jsonb_typeof(value) == "number", cast(cast(value, JSONB), Float)))


def _usage(figures: Sequence[Any]) -> Usage:
    runs, tokens, cost, gpu_hours, cpu_hours = figures
    hours = {"gpu_hours": gpu_hours or 0.0, "cpu_hours": cpu_hours or 0.0}
    return Usage(runs=runs, tokens=round(tokens or 0), cost=cost, **hours)
