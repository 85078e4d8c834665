"""Read a run's groups: the rollouts of one task next to each other, and the hardest and easiest tasks."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, cast, func, literal, select, text, tuple_
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session, contains_eager

from backend.domain.vocabulary import RolloutStatus
from backend.errors import InvalidInput
from backend.results.figures import EQUAL_REWARDS
from backend.results.rewards import RunRewards
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.schemas import GroupFilter
from backend.runs.tables import Run
from backend.web.paging import Slice, make_cursor, read_cursor

SORTS: dict[str, ColumnElement[Any]] = {
    "mean": func.avg(Rollout.reward),
    "spread": func.stddev_pop(Rollout.reward),
    "tokens": func.avg(Rollout.tokens_out),
    "failed": func.count().filter(Rollout.status == RolloutStatus.FAILED),
}
"""Default: the order of playing. A leading `-` sorts in descending order."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group with its members' rewards in order; None for a failed one."""

    group: Group
    rollout_ids: list[uuid.UUID]
    rewards: list[float | None]
    mean: float | None
    deviation: float | None
    tokens: float | None = None
    """Tokens sampled per rollout."""

    @property
    def is_mixed(self) -> bool:
        return self.deviation is not None and self.deviation > EQUAL_REWARDS

    @property
    def completed(self) -> int:
        return sum(reward is not None for reward in self.rewards)


def groups(session: Session, run: Run, filter: GroupFilter) -> Slice[ListedGroup]:
    """Latest training step first, then by ordinal; or sorted by a figure of the members."""
    equal = {Group.phase: filter.phase, Group.training_step: filter.step, Task.level: filter.level}
    conditions = [column == value for column, value in equal.items() if value is not None]
    statement = select(Group.id).where(Group.run_id == run.id, *conditions)
    if filter.level is not None:
        statement = statement.join(Group.task)
    of_group = select(Rollout.group_id).where(Rollout.run_id == run.id).group_by(Rollout.group_id)
    if filter.spread:
        spread = func.coalesce(func.stddev_pop(Rollout.reward), 0)
        is_wanted = spread > EQUAL_REWARDS if filter.spread == "mixed" else spread <= EQUAL_REWARDS
        statement = statement.where(Group.id.in_(of_group.having(is_wanted)))

    # All keys ascend and are never null: groups without a figure come last.
    keys: list[Any] = [-func.coalesce(Group.training_step, -1), Group.ordinal, Group.phase]
    if filter.sort:
        name, is_descending = filter.sort.removeprefix("-"), filter.sort.startswith("-")
        if name not in SORTS:
            raise InvalidInput(fields={"sort": f"Sort by one of {', '.join(SORTS)}, with a leading `-` to reverse."})
        figure = cast(SORTS[name], Double)
        folded = of_group.add_columns((-figure if is_descending else figure).label("figure")).subquery()
        statement = statement.join(folded, folded.c.group_id == Group.id)
        keys = [func.coalesce(folded.c.figure, cast(literal("infinity"), Double)), Group.id]
    if filter.after:
        statement = statement.where(tuple_(*keys) > tuple_(*read_cursor(filter.after, keys)))
    statement = statement.add_columns(*(key.label(f"key_{place}") for place, key in enumerate(keys)))
    page = statement.order_by(*keys).limit(filter.limit + 1).subquery()
    on_page = [page.c[f"key_{place}"] for place in range(len(keys))]
    members = (
        select(
            Group,
            func.array_agg(aggregate_order_by(Rollout.id, Rollout.member)),
            func.array_agg(aggregate_order_by(Rollout.reward, Rollout.member)),
            func.avg(Rollout.reward),
            func.stddev_pop(Rollout.reward),
            cast(func.avg(Rollout.tokens_out), Double),
            *on_page,
        )
        .join(page, page.c.id == Group.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .join(Group.task)
        .options(contains_eager(Group.task))
        .group_by(Group.id, *page.c, *Task.__table__.columns)
        .order_by(*on_page)
    )
    rows = session.execute(members).all()
    has_more = len(rows) > filter.limit
    shown = rows[: filter.limit]
    cursor = make_cursor(*shown[-1][-len(keys) :]) if has_more else None
    return Slice([ListedGroup(*row[: -len(keys)]) for row in shown], cursor)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """One of the hardest or easiest tasks of a run."""

    task: str
    level: int
    mean: float
    completed: int
    members: int
    rollout_id: uuid.UUID | None
    """The first completed rollout."""


_ENDS = text("""
SELECT g.id, t.split || '/' || t.index AS task, t.level,
       (SELECT r.id FROM rollouts r WHERE r.group_id = g.id AND r.status = 'completed' ORDER BY r.member LIMIT 1)
       AS rollout_id
FROM groups g JOIN tasks t ON t.id = g.task_id WHERE g.id = ANY(CAST(:groups AS uuid[]))
""")


def task_ends(session: Session, rewards: RunRewards, count: int) -> tuple[list[TaskEnd], list[TaskEnd]]:
    """The tasks with the lowest and the highest mean reward, most extreme first; empty if all means are equal."""
    import numpy as np

    reward = rewards.values[:, 0]
    completed = rewards.total(~np.isnan(reward))
    played = np.flatnonzero(completed)
    means = rewards.total(np.nan_to_num(reward))[played] / completed[played]
    if not len(played) or np.ptp(means) <= EQUAL_REWARDS:
        return [], []
    ends = [played[np.argsort(order, kind="stable")[:count]] for order in (means, -means)]
    ids = {place: uuid.UUID(bytes=rewards.groups["id"][place].tobytes()) for place in np.concatenate(ends).tolist()}
    rows = {row.id: row for row in session.execute(_ENDS, {"groups": list(ids.values())})}
    mean_of = dict(zip(played.tolist(), means.tolist(), strict=True))
    hard, easy = (
        [
            TaskEnd(
                *(rows[ids[place]].task, rows[ids[place]].level, mean_of[place], int(completed[place])),
                *(int(rewards.groups["members"][place]), rows[ids[place]].rollout_id),
            )
            for place in end.tolist()
        ]
        for end in ends
    )
    return sorted(hard, key=lambda end: (end.mean, end.task)), sorted(easy, key=lambda end: (-end.mean, end.task))
