"""What the groups of a run amount to, folded once: success by task (pass@k, pass^k), by level, shares of mixed ones."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from sqlalchemy import Row, TextClause, text
from sqlalchemy.orm import Session

from backend.domain.results.pass_at_k import REWARD, PassAt, SuccessRule, TaskCount, pass_curve
from backend.domain.statistics import Coverage, Estimate
from backend.errors import InvalidInput
from backend.results.figures import SCOPE, Scope
from backend.results.group_queries import SAME
from backend.runs.tables import Run


@dataclass(frozen=True, slots=True)
class GroupShares:
    """Groups of several completed rollouts: where all earn the same there is nothing to learn from."""

    groups: int
    mixed: int
    all_good: int
    """All members earn the same, and they succeed."""
    all_bad: int


@dataclass(slots=True)
class GroupFigures:
    """Success over tasks, under a rule."""

    passes: list[PassAt] = field(default_factory=list)
    by_level: dict[int, Estimate] = field(default_factory=dict)
    """Success rate (pass@1)."""
    coverage: dict[int, Coverage] = field(default_factory=dict)
    """Of the stored rollouts, by level."""
    shares: GroupShares | None = None
    """None where groups have one member."""

    @property
    def success(self) -> Estimate | None:
        return self.passes[0].any if self.passes else None


def group_figures(session: Session, run: Run, scope: Scope, rule: SuccessRule) -> GroupFigures:
    """One pass over the rollouts; what comes back has a row for each way in which a group can have ended."""
    bound = rule.at_least - abs(rule.at_least) * 1e-6  # stored in single precision
    parameters = scope.parameters() | {"bound": bound, "same": SAME}
    rows = session.execute(_folded(position_of(run, rule.column)), parameters).all()
    levels: defaultdict[int, list[Row[tuple[int, ...]]]] = defaultdict(list)
    for row in rows:
        levels[row.level].append(row)
    return GroupFigures(
        passes=pass_curve(_counts(rows)),
        by_level={level: curve[0].any for level in sorted(levels) if (curve := pass_curve(_counts(levels[level])))},
        coverage={
            level: Coverage(
                sum(row.attempts * row.tasks for row in found), sum(row.members * row.tasks for row in found)
            )
            for level, found in sorted(levels.items())
        },
        shares=_shares(rows),
    )


def position_of(run: Run, column: str) -> int | None:
    """Where a reward column stands in a rollout's values; None for the reward itself."""
    if column == REWARD and column not in run.columns:
        return None
    if column not in run.columns:
        named = ", ".join([REWARD, *run.columns])
        raise InvalidInput(fields={"success": f"This run has no reward column `{column}`; it has {named}."})
    return run.columns.index(column) + 1


def value_of(position: int | None) -> str:
    """SQL of it."""
    return "r.reward::float8" if position is None else f"r.columns[{position}]::float8"


@lru_cache(maxsize=64)
def _folded(position: int | None) -> TextClause:
    return text(f"""
        WITH grouped AS (
            SELECT r.level, count(*) AS members, count(r.reward) FILTER (WHERE r.status = 'completed') AS attempts,
                   count(*) FILTER (WHERE r.status = 'completed' AND {value_of(position)} >= :bound) AS successes,
                   coalesce(max(r.reward) - min(r.reward), 0) > :same AS is_mixed
            FROM rollouts r WHERE {SCOPE} GROUP BY r.group_id, r.level
        )
        SELECT level, members, attempts, successes, is_mixed, count(*) AS tasks FROM grouped GROUP BY 1, 2, 3, 4, 5
    """)


def _counts(rows: Iterable[Row[tuple[int, ...]]]) -> list[TaskCount]:
    return [TaskCount(row.attempts, row.successes, row.tasks) for row in rows]


def _shares(rows: Sequence[Row[tuple[int, ...]]]) -> GroupShares | None:
    several = [row for row in rows if row.attempts > 1]
    total = sum(row.tasks for row in several)
    if not total:
        return None
    mixed = sum(row.tasks for row in several if row.is_mixed)
    good = sum(row.tasks for row in several if not row.is_mixed and row.successes == row.attempts)
    return GroupShares(total, mixed, good, total - mixed - good)
