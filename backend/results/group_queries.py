"""Reading groups: the rollouts of one task side by side, with what they differ in; the hardest tasks, the easiest."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, Subquery, and_, cast, func, literal, or_, select, text
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session, contains_eager

from backend.domain.vocabulary import RolloutStatus
from backend.errors import InvalidInput
from backend.results.figures import SCOPE, Scope
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.schemas import GroupFilter
from backend.runs.tables import Run
from backend.web.paging import Slice, make_cursor, read_cursor

SAME = 1e-6
"""Rewards whose spread is no larger are the same."""
SORTS = ("mean", "spread", "tokens", "failed")
"""Besides the order of playing; `-` in front: falling."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group with its members' rewards in order; None for a failed one."""

    group: Group
    rollout_ids: list[uuid.UUID]
    rewards: list[float | None]
    mean: float | None
    deviation: float | None
    tokens: float | None = None
    """Written by the policy, a rollout."""

    @property
    def is_mixed(self) -> bool:
        return self.deviation is not None and self.deviation > SAME

    @property
    def completed(self) -> int:
        return sum(reward is not None for reward in self.rewards)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """One of the hardest or easiest tasks: the mean reward of its completed rollouts."""

    task: str
    level: int
    rollout_id: uuid.UUID
    mean: float
    completed: int
    members: int


def groups(session: Session, run: Run, wanted: GroupFilter) -> Slice[ListedGroup]:
    """Newest training step first, then by ordinal; or by what the members amount to."""
    return _by_figure(session, run, wanted) if wanted.sort else _in_order(session, run, wanted)


def _in_order(session: Session, run: Run, wanted: GroupFilter) -> Slice[ListedGroup]:
    step = func.coalesce(Group.training_step, -1)
    found = _wanted(run, wanted, step.label("step"))
    if wanted.after:
        at_step, ordinal, phase = read_cursor(wanted.after, (step, Group.ordinal, Group.phase))
        behind = or_(Group.ordinal > ordinal, and_(Group.ordinal == ordinal, Group.phase > phase))
        found = found.where(or_(step < at_step, and_(step == at_step, behind)))
    part = found.order_by(step.desc(), Group.ordinal, Group.phase).limit(wanted.limit + 1).subquery()
    items = _with_members(session, part, (part.c.step.desc(), Group.ordinal, Group.phase))
    shown = items[: wanted.limit]
    if len(items) <= wanted.limit:
        return Slice(shown, None)
    last = shown[-1].group
    at = -1 if last.training_step is None else last.training_step
    return Slice(shown, make_cursor(at, last.ordinal, str(last.phase)))


def _by_figure(session: Session, run: Run, wanted: GroupFilter) -> Slice[ListedGroup]:
    is_descending = wanted.sort.startswith("-")
    folded = _folded(run).subquery()
    last = literal("-infinity" if is_descending else "infinity")
    key = func.coalesce(folded.c[_sort_name(wanted.sort)], cast(last, Double))
    found = _wanted(run, wanted, key.label("key")).join(folded, folded.c.group_id == Group.id)
    if wanted.after:
        value, group_id = read_cursor(wanted.after, (key, Group.id))
        past = key < value if is_descending else key > value
        found = found.where(or_(past, and_(key == value, Group.id > group_id)))
    order = key.desc() if is_descending else key.asc()
    part = found.order_by(order, Group.id).limit(wanted.limit + 1).subquery()
    items = _with_members(session, part, (part.c.key.desc() if is_descending else part.c.key.asc(), Group.id))
    shown = items[: wanted.limit]
    if len(items) <= wanted.limit:
        return Slice(shown, None)
    at = session.scalar(select(key).select_from(folded).where(folded.c.group_id == shown[-1].group.id))
    return Slice(shown, make_cursor(at, shown[-1].group.id))


def _sort_name(sort: str) -> str:
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise InvalidInput(fields={"sort": f"Sort by one of {', '.join(SORTS)}; `-` in front falls."})
    return name


def _folded(run: Run) -> Select[Any]:
    """What groups are sorted by."""
    return (
        select(
            Rollout.group_id,
            cast(func.avg(Rollout.reward), Double).label("mean"),
            cast(func.stddev_pop(Rollout.reward), Double).label("spread"),
            cast(func.avg(Rollout.tokens_out), Double).label("tokens"),
            cast(func.count().filter(Rollout.status == RolloutStatus.FAILED), Double).label("failed"),
        )
        .where(Rollout.run_id == run.id)
        .group_by(Rollout.group_id)
    )


def _wanted(run: Run, wanted: GroupFilter, key: ColumnElement[Any]) -> Select[Any]:
    """Ids of the run's groups that pass the filter, with the key that they are sorted by."""
    equal = {Group.phase: wanted.phase, Group.training_step: wanted.step, Task.level: wanted.level}
    found = (
        select(Group.id, key)
        .join(Group.task)
        .where(Group.run_id == run.id, *(column == value for column, value in equal.items() if value is not None))
    )
    if wanted.spread:
        found = found.where(Group.id.in_(_with_spread(run, is_mixed=wanted.spread == "mixed")))
    return found


def _with_members(session: Session, part: Subquery, order: Sequence[ColumnElement[Any] | Any]) -> list[ListedGroup]:
    """The groups of one page, each with its task and its members' rewards."""
    statement = (
        select(
            Group,
            func.array_agg(aggregate_order_by(Rollout.id, Rollout.member)),
            func.array_agg(aggregate_order_by(Rollout.reward, Rollout.member)),
            func.avg(Rollout.reward),
            func.stddev_pop(Rollout.reward),
            cast(func.avg(Rollout.tokens_out), Double),
        )
        .join(part, part.c.id == Group.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .join(Group.task)
        .options(contains_eager(Group.task))
        .group_by(Group.id, *part.c, *Task.__table__.columns)
        .order_by(*order)
    )
    return [ListedGroup(*row) for row in session.execute(statement)]


def _with_spread(run: Run, *, is_mixed: bool) -> Select[Any]:
    """Groups whose members' rewards differ, or do not."""
    spread = func.coalesce(func.stddev_pop(Rollout.reward), 0)
    grouped = select(Rollout.group_id).where(Rollout.run_id == run.id).group_by(Rollout.group_id)
    return grouped.having(spread > SAME if is_mixed else spread <= SAME)


_ENDS = text(f"""
WITH folded AS MATERIALIZED (
    SELECT r.group_id, avg(r.reward::float8) AS mean, count(r.reward) AS completed, count(*) AS members
    FROM rollouts r WHERE {SCOPE} GROUP BY r.group_id HAVING count(r.reward) > 0
), ends AS (
    (SELECT *, TRUE AS is_hard FROM folded ORDER BY mean, group_id LIMIT :most)
    UNION ALL (SELECT *, FALSE FROM folded ORDER BY mean DESC, group_id LIMIT :most)
)
SELECT e.is_hard, e.mean, e.completed, e.members, t.split || '/' || t.index AS task, t.level,
       (SELECT r.id FROM rollouts r WHERE r.group_id = e.group_id AND r.status = 'completed' ORDER BY r.member LIMIT 1)
       AS rollout_id
FROM ends e JOIN groups g ON g.id = e.group_id JOIN tasks t ON t.id = g.task_id
""")


def task_ends(session: Session, scope: Scope, most: int) -> tuple[list[TaskEnd], list[TaskEnd]]:
    """The tasks with the lowest and with the highest mean reward, the extreme first; none where all are alike."""
    hard: list[TaskEnd] = []
    easy: list[TaskEnd] = []
    for row in session.execute(_ENDS, scope.parameters() | {"most": most}):
        end = TaskEnd(row.task, row.level, row.rollout_id, row.mean, row.completed, row.members)
        (hard if row.is_hard else easy).append(end)
    hard.sort(key=lambda end: (end.mean, end.task))
    easy.sort(key=lambda end: (-end.mean, end.task))
    if not hard or easy[0].mean - hard[0].mean <= SAME:
        return [], []
    return hard, easy
