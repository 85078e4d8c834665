"""Which groups of a run a job plays, taken piece by piece: several workers share a run, and none waits for a slow one.

What a job has claimed stands in its own row, written under the lock of the run's row. A job that is begun again plays
what is missing of its claims first; a resumed run begins with new jobs and new claims.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import drawn_task
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import OF_EVALUATION, JobStatus, RolloutStatus
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from workers.rollouts.engine import GroupPlan

MOST_ROLLOUTS = 4096
"""Of one piece: what is held in memory of a run of any size."""
PIECES = 4
"""A worker's part of what is left is cut into so many, so that all end at about the same time."""
THROUGH = "is_through"
"""In a job's arguments: it ended its part, though its row may not say so yet."""
ENDED = (RolloutStatus.COMPLETED, RolloutStatus.FAILED)


class Share:
    """One job's part of an evaluation. Without a job it is the whole."""

    def __init__(self, run_id: uuid.UUID, plan: EvaluationPlan, manifest: Manifest, job_id: uuid.UUID | None) -> None:
        self.run_id, self.plan, self.manifest = run_id, plan, manifest
        self.job_id = job_id if plan.workers > 1 else None

    @property
    def is_shared(self) -> bool:
        return self.job_id is not None

    async def groups(self) -> AsyncIterator[GroupPlan]:
        """What is still to be played, in the order of the plan."""
        pieces = self._pieces()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            for plan in await asyncio.to_thread(self._missing, piece):
                yield plan

    def leaves_to_others(self, session: Session) -> bool:
        """This job is through: does another of its batch still play, or wait to? Under the lock of the run's row."""
        if self.job_id is None:
            return False
        mine = session.get_one(Job, self.job_id, populate_existing=True)
        mine.arguments = {**mine.arguments, THROUGH: True}
        unfinished = Job.status.in_((JobStatus.QUEUED, JobStatus.LEASED))
        others = _batch_of(mine).where(Job.id != mine.id, unfinished, Job.arguments[THROUGH].is_(None))
        return session.scalar(select(others.exists())) or False

    def _pieces(self) -> Iterator[range]:
        if self.job_id is None:
            yield from _cut(range(self.plan.tasks), self._most_groups)
            return
        for start, stop in self._claims():
            yield from _cut(range(start, stop), self._most_groups)
        while (piece := self._claim()) is not None:
            yield piece

    @property
    def _most_groups(self) -> int:
        return max(1, MOST_ROLLOUTS // self.plan.group_size)

    def _claims(self) -> list[list[int]]:
        with transaction() as session:
            return list(session.get_one(Job, self.job_id).arguments.get("claims", []))

    def _claim(self) -> range | None:
        """The next groups that nobody has; None when there are no more."""
        with transaction() as session:
            session.execute(select(Run.id).where(Run.id == self.run_id).with_for_update(key_share=True))
            mine = session.get_one(Job, self.job_id, populate_existing=True)
            taken = [claim for job in session.scalars(_batch_of(mine)) for claim in job.arguments.get("claims", [])]
            start = max((stop for _, stop in taken), default=0)
            left = self.plan.tasks - start
            if left <= 0:
                return None
            size = min(self._most_groups, max(1, left // (self.plan.workers * PIECES)))
            claims = [*mine.arguments.get("claims", []), [start, start + size]]
            mine.arguments = {**mine.arguments, "claims": claims}
        return range(start, start + size)

    def _missing(self, piece: range) -> list[GroupPlan]:
        with transaction() as session:
            finished = _finished(session, self.run_id, piece)
        indexes, members = self.plan.task_indexes, range(self.plan.group_size)
        plans = []
        for ordinal in piece:
            left = tuple(member for member in members if member not in finished[ordinal])
            if left:
                plans.append(
                    GroupPlan(drawn_task(self.manifest, self.plan.split, indexes[ordinal]), ordinal, left, len(members))
                )
        return plans


def ended_counts(session: Session, run_id: uuid.UUID) -> dict[RolloutStatus, int]:
    """How many rollouts of an evaluation are completed, and how many failed."""
    query = (
        select(RolloutRow.status, func.count().label("amount"))
        .where(RolloutRow.run_id == run_id, RolloutRow.phase.in_(OF_EVALUATION), RolloutRow.status.in_(ENDED))
        .group_by(RolloutRow.status)
    )
    return {row.status: row.amount for row in session.execute(query)}


def _batch_of(job: Job) -> Select[Job]:
    """The jobs that began together: those that share what is left."""
    return select(Job).where(Job.run_id == job.run_id, Job.arguments["batch"].astext == job.arguments.get("batch", ""))


def _cut(whole: range, size: int) -> Iterator[range]:
    for start in range(whole.start, whole.stop, size):
        yield range(start, min(start + size, whole.stop))


def _finished(session: Session, run_id: uuid.UUID, piece: range) -> defaultdict[int, set[int]]:
    """Members of each of these groups that are completed."""
    found = session.execute(
        select(Group.ordinal, RolloutRow.member)
        .join(Group, Group.id == RolloutRow.group_id)
        .where(
            Group.run_id == run_id,
            Group.phase.in_(OF_EVALUATION),
            Group.ordinal >= piece.start,
            Group.ordinal < piece.stop,
            RolloutRow.status == RolloutStatus.COMPLETED,
        )
    )
    members: defaultdict[int, set[int]] = defaultdict(set)
    for ordinal, member in found:
        members[ordinal].add(member)
    return members
