"""Episodes that people judged. GRPO learns only from what it has just played, so a verdict on a past episode speaks of
those to come: one that does the same in the same task again."""

import uuid
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.text import plain_text
from backend.domain.vocabulary import Verdict
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Group, Task
from backend.rollouts.tables import Rollout as RolloutRow

WRONG = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})
"""Verdicts which say that the reward must not be learned from, whoever is to blame."""
Deed = tuple[str, ...]
"""A task, and every reply in it."""


class Deeds:
    """What stored episodes did, each read once."""

    def __init__(self) -> None:
        self._known: dict[uuid.UUID, Deed] = {}

    def of(self, session: Session, rollout_ids: Collection[uuid.UUID]) -> set[Deed]:
        self._known |= _deeds(session, set(rollout_ids) - self._known.keys())
        return {self._known[rollout] for rollout in rollout_ids if rollout in self._known}


class Verdicts:
    """Verdicts of people on episodes of these environment versions, whichever run played them. The newest that says
    something counts, from the moment it is given: unsure changes nothing."""

    def __init__(self, version_ids: Sequence[uuid.UUID]) -> None:
        """The run's own version first."""
        self._own, self._versions = version_ids[0], version_ids
        self._deeds = Deeds()

    def wrongly_rewarded(self, rollouts: Sequence[Rollout]) -> set[int]:
        """Places of rollouts that repeat, reply by reply, a hack or what the reward gets wrong."""
        with transaction() as session:
            wrong = self._deeds.of(session, _judged(session, self._versions, WRONG))
        return self.places(rollouts, wrong)

    def honest(self, rollouts: Sequence[Rollout]) -> set[int]:
        """Places of rollouts that repeat what was judged honest, and nothing whose reward was judged wrong."""
        with transaction() as session:
            wrong = self._deeds.of(session, _judged(session, self._versions, WRONG))
            honest = self._deeds.of(session, _judged(session, self._versions, {Verdict.HONEST}))
        return self.places(rollouts, honest - wrong)

    def places(self, rollouts: Sequence[Rollout], deeds: set[Deed]) -> set[int]:
        """Which of the rollouts did one of these."""
        return {place for place, rollout in enumerate(rollouts) if self.deed_of(rollout) in deeds} if deeds else set()

    def deed_of(self, rollout: Rollout) -> Deed:
        task = rollout.task
        replies = (plain_text(step.reply) for step in rollout.steps)
        return _deed_of(task.version_id or self._own, task.split, task.index, task.seed, replies)


def _judged(session: Session, version_ids: Sequence[uuid.UUID], verdicts: Collection[Verdict]) -> set[uuid.UUID]:
    newest = (
        select(VerdictRecord.rollout_id, VerdictRecord.verdict)
        .join(RolloutRow, RolloutRow.id == VerdictRecord.rollout_id)
        .join(Group, Group.id == RolloutRow.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Task.version_id.in_(version_ids))
        .where(VerdictRecord.taken_back_at.is_(None), VerdictRecord.verdict != Verdict.UNSURE)
        .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.rollout_id))
    )
    return {row.rollout_id for row in session.execute(newest) if row.verdict in verdicts}


def _deeds(session: Session, rollout_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, Deed]:
    if not rollout_ids:
        return {}
    statement = (
        select(RolloutRow.id, RolloutRow.steps, Task)
        .join(Group, Group.id == RolloutRow.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(RolloutRow.id.in_(rollout_ids))
    )
    return {
        row.id: _deed_of(
            row.Task.version_id, row.Task.split, row.Task.index, row.Task.seed, (step["reply"] for step in row.steps)
        )
        for row in session.execute(statement)
    }


def _deed_of(version_id: uuid.UUID, split: str, index: int, seed: int, replies: Iterable[str]) -> Deed:
    return (str(version_id), str(split), str(index), str(seed), *replies)
