"""Read a run's groups: the rollouts of one task next to each other, and the hardest and easiest tasks."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, Row, cast, func, literal, select, text, tuple_
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session, contains_eager

from backend.domain.vocabulary import RolloutStatus
from backend.errors import InvalidInput
from backend.results.figures import EQUAL_REWARDS, SCOPE, FigureScope
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
    statement = select(Group.id).join(Group.task).where(Group.run_id == run.id, *conditions)
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


def task_ends(session: Session, scope: FigureScope, count: int) -> tuple[list[Row[Any]], list[Row[Any]]]:
    """The tasks with the lowest and the highest mean reward, most extreme first; empty if all means are equal."""
    rows = session.execute(_ENDS, scope.parameters() | {"most": count}).all()
    hard = sorted((row for row in rows if row.is_hard), key=lambda row: (row.mean, row.task))
    easy = sorted((row for row in rows if not row.is_hard), key=lambda row: (-row.mean, row.task))
    return (hard, easy) if hard and easy[0].mean - hard[0].mean > EQUAL_REWARDS else ([], [])
