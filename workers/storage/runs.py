"""Rows of evaluations: which groups each job plays, which rollouts have ended, and the summary at the end.

Several jobs can share a run. Each claims groups piece by piece, so that none waits for a slow one. A job's claims are
in its own row, written under the lock of the run's row. A job that is retried first plays the rest of its
claims; a resumed run starts with new jobs and new claims.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import drawn_task
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import OF_EVALUATION, UNFINISHED, Phase, RolloutStatus
from backend.environments.tables import EnvironmentVersion
from backend.results import figures
from backend.results.matches import match_result, opponent_columns
from backend.results.rewards import FigureScope, keep_rewards, read_rewards
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from workers.rollouts.engine import GroupPlan

MAX_PIECE_ROLLOUTS = 4096
"""Bounds the memory that a run of any size needs."""
PIECES = 4
"""A worker's part of the remaining groups is cut into this many pieces, so that all jobs end at about the same time."""
IS_THROUGH = "is_through"
"""Key of a job's arguments: it has finished its part, though its status may not show it yet."""
_GROUPS = text("""
WITH spread AS (
    SELECT min(reward) AS low, max(reward) AS high, avg(reward) AS mean, count(*) AS members
    FROM rollouts WHERE run_id = :run AND phase = :phase AND status = 'completed' GROUP BY group_id
), middle AS (
    SELECT (min(low) + max(high)) / 2 AS reward FROM spread
)
SELECT count(*) AS groups,
       count(*) FILTER (WHERE high > low) AS mixed,
       count(*) FILTER (WHERE high = low AND mean >= middle.reward) AS all_good,
       count(*) FILTER (WHERE high = low AND mean < middle.reward) AS all_bad
FROM spread CROSS JOIN middle WHERE members > 1
""")


class WorkClaim:
    """One job's part of an evaluation. Without a job it is the whole."""

    def __init__(self, run_id: uuid.UUID, plan: EvaluationPlan, manifest: Manifest, job_id: uuid.UUID | None) -> None:
        self.run_id, self.plan, self.manifest = run_id, plan, manifest
        self.job_id = job_id if plan.workers > 1 else None
        self._max_groups = max(1, MAX_PIECE_ROLLOUTS // plan.group_size)

    async def missing_groups(self) -> AsyncIterator[GroupPlan]:
        """Iterate over the groups to play, in the order of the plan."""
        pieces = self._pieces()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            for plan in await asyncio.to_thread(self._missing_groups, piece):
                yield plan

    def others_continue(self, session: Session) -> bool:
        """Whether other jobs of the batch are unfinished, now that this one has. Needs the lock of the run's row."""
        if self.job_id is None:
            return False
        mine = session.get_one(Job, self.job_id, populate_existing=True)
        mine.arguments = {**mine.arguments, IS_THROUGH: True}
        unfinished = Job.status.in_(UNFINISHED)
        others = _batch_of(mine).where(Job.id != mine.id, unfinished, Job.arguments[IS_THROUGH].is_(None))
        return session.scalar(select(others.exists())) or False

    def _pieces(self) -> Iterator[range]:
        """The job's earlier claims, cut to size, then new claims until every group is claimed."""
        claims: list[list[int]] = [[0, self.plan.tasks]]
        if self.job_id is not None:
            with transaction() as session:
                claims = list(session.get_one(Job, self.job_id).arguments.get("claims", []))
        for start, stop in claims:
            for begin in range(start, stop, self._max_groups):
                yield range(begin, min(begin + self._max_groups, stop))
        if self.job_id is not None:
            yield from iter(self._claim, None)

    def _claim(self) -> range | None:
        """Claim the next groups; None if all are claimed."""
        with transaction() as session:
            session.execute(select(Run.id).where(Run.id == self.run_id).with_for_update(key_share=True))
            mine = session.get_one(Job, self.job_id, populate_existing=True)
            claims = [claim for job in session.scalars(_batch_of(mine)) for claim in job.arguments.get("claims", [])]
            start = max((stop for _, stop in claims), default=0)
            left = self.plan.tasks - start
            if left <= 0:
                return None
            stop = start + min(self._max_groups, max(1, left // (self.plan.workers * PIECES)))
            mine.arguments = {**mine.arguments, "claims": [*mine.arguments.get("claims", []), [start, stop]]}
        return range(start, stop)

    def _missing_groups(self, piece: range) -> list[GroupPlan]:
        statement = (
            select(Group.ordinal, RolloutRow.member)
            .join(Group, Group.id == RolloutRow.group_id)
            .where(
                Group.run_id == self.run_id,
                Group.phase.in_(OF_EVALUATION),
                Group.ordinal >= piece.start,
                Group.ordinal < piece.stop,
                RolloutRow.status == RolloutStatus.COMPLETED,
            )
        )
        completed: defaultdict[int, set[int]] = defaultdict(set)
        with transaction() as session:
            for ordinal, member in session.execute(statement):
                completed[ordinal].add(member)
        indexes, size = self.plan.task_indexes, self.plan.group_size
        plans = []
        for ordinal in piece:
            if missing := tuple(member for member in range(size) if member not in completed[ordinal]):
                task = drawn_task(self.manifest, self.plan.split, indexes[ordinal])
                plans.append(GroupPlan(task, ordinal, missing, size))
        return plans


def _batch_of(job: Job) -> Select[Job]:
    """The jobs that started together and share the remaining groups."""
    return select(Job).where(Job.run_id == job.run_id, Job.arguments["batch"].astext == job.arguments.get("batch", ""))


def ended_counts(session: Session, run_id: uuid.UUID) -> dict[RolloutStatus, int]:
    """Count the completed and the failed rollouts of an evaluation."""
    ended = RolloutRow.status.in_((RolloutStatus.COMPLETED, RolloutStatus.FAILED))
    query = (
        select(RolloutRow.status, func.count().label("amount"))
        .where(RolloutRow.run_id == run_id, RolloutRow.phase.in_(OF_EVALUATION), ended)
        .group_by(RolloutRow.status)
    )
    return {row.status: row.amount for row in session.execute(query)}


def summarize(session: Session, run: Run, *, seconds: float, played: int) -> dict[str, object]:
    """Compute `Run.summary`. `seconds` and `played` are of this attempt, for the rate; all else covers every stored
    rollout."""
    keep_rewards(session, run)
    everything = read_rewards(session, run, FigureScope(run.id))
    evaluated = everything.of_phase(Phase.EVALUATION)
    reward, *columns = figures.column_figures(run, evaluated)
    found = figures.outcomes(session, FigureScope(run.id))  # with canaries, which are played and paid for too
    rule = figures.rule_of(run, Manifest.model_validate(session.get_one(EnvironmentVersion, run.version_id).manifest))
    passes = figures.group_figures(run, evaluated, rule).passes
    cheating = figures.cheat_rate(run, everything, rule)
    groups = session.execute(_GROUPS, {"run": run.id, "phase": str(Phase.EVALUATION)}).one()
    shares = {name: getattr(groups, name) / groups.groups for name in ("mixed", "all_good", "all_bad") if groups.groups}
    same = ("completed", "failed", "stop_reasons", "truncated", "turns", "tokens_in", "tokens_out", "cost", "priced")
    times = ("queue_seconds", "policy_seconds", "environment_seconds")
    summary: dict[str, object] = {
        "reward": _stored_figure(reward),
        "columns": {column.name: _stored_figure(column) for column in columns},
        "rollouts": found.total,
        **{name: getattr(found, name) for name in same},
        "cancelled": found.statuses.get(RolloutStatus.CANCELLED, 0),
        "errors": {failure.kind: failure.count for failure in found.failures},
        **{name: round(getattr(found, name), 3) for name in times},
        "success": {"rule": rule.expression, **asdict(passes[0].any)} if passes else None,
        "passes": [{"k": at.k, "pass_at_k": at.any.mean, "pass_hat_k": at.all.mean} for at in passes],
        "groups": {"count": groups.groups, **shares} if groups.groups else None,
        "seconds": round(seconds, 3),
        "rollouts_per_second": round(played / seconds, 3) if seconds > 0 else None,
    }
    if (match := match_result(session, run)) is not None:
        summary["match"] = {**asdict(match), "opponent_columns": opponent_columns(session, run)}
    if cheating is not None:
        interval = {"rate": cheating.value, "low": cheating.low, "high": cheating.high}
        summary["cheat_rate"] = {**interval, "passed": cheating.found, "played": cheating.looked_at}
    return summary


def _stored_figure(figure: figures.ColumnFigures) -> dict[str, object] | None:
    if figure.estimate is None:
        return None
    levels = {str(level): asdict(estimate) for level, estimate in sorted(figure.by_level.items())}
    return {**asdict(figure.estimate), "levels": levels}
