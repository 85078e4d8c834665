"""Reading groups: the rollouts of one task side by side, with what they differ in."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session, contains_eager

from backend.db.models import Group, Rollout, Run, Task
from backend.evaluations.forms import GroupFilter
from backend.web.paging import Slice, make_cursor, read_cursor

SAME = 1e-6
"""Rewards whose spread is no larger are the same."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group with its members' rewards in order; None for a failed one."""

    group: Group
    rollout_ids: list[uuid.UUID]
    rewards: list[float | None]
    mean: float | None
    deviation: float | None

    @property
    def is_mixed(self) -> bool:
        return self.deviation is not None and self.deviation > SAME


def groups(session: Session, run: Run, wanted: GroupFilter) -> Slice[ListedGroup]:
    """Newest training step first, then by ordinal."""
    step = func.coalesce(Group.training_step, -1)
    equal = {Group.phase: wanted.phase, Group.training_step: wanted.step, Task.level: wanted.level}
    found = (
        select(Group.id, step.label("step"))
        .join(Group.task)
        .where(Group.run_id == run.id, *(column == value for column, value in equal.items() if value is not None))
    )
    if wanted.spread:
        found = found.where(Group.id.in_(_with_spread(run, is_mixed=wanted.spread == "mixed")))
    if wanted.after:
        at_step, ordinal, phase = read_cursor(wanted.after, (step, Group.ordinal, Group.phase))
        behind = or_(Group.ordinal > ordinal, and_(Group.ordinal == ordinal, Group.phase > phase))
        found = found.where(or_(step < at_step, and_(step == at_step, behind)))
    part = found.order_by(step.desc(), Group.ordinal, Group.phase).limit(wanted.limit + 1).subquery()
    statement = (
        select(
            Group,
            part.c.step,
            func.array_agg(aggregate_order_by(Rollout.id, Rollout.member)),
            func.array_agg(aggregate_order_by(Rollout.reward, Rollout.member)),
            func.avg(Rollout.reward),
            func.stddev_pop(Rollout.reward),
        )
        .join(part, part.c.id == Group.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .join(Group.task)
        .options(contains_eager(Group.task))
        .group_by(Group.id, part.c.step, *Task.__table__.columns)
        .order_by(part.c.step.desc(), Group.ordinal, Group.phase)
    )
    rows = session.execute(statement).all()
    shown = rows[: wanted.limit]
    shown = rows[: wanted.limit]
    items = [ListedGroup(group, ids, rewards, mean, deviation) for group, _, ids, rewards, mean, deviation in shown]
    last = shown[-1] if len(rows) > wanted.limit else None
    return Slice(items, make_cursor(last[1], last[0].ordinal, str(last[0].phase)) if last else None)


def _with_spread(run: Run, *, is_mixed: bool) -> Select[Any]:
    """Groups whose members' rewards differ, or do not."""
    spread = func.coalesce(func.stddev_pop(Rollout.reward), 0)
    grouped = select(Rollout.group_id).where(Rollout.run_id == run.id).group_by(Rollout.group_id)
    return grouped.having(spread > SAME if is_mixed else spread <= SAME)
