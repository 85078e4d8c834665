"""What a run's rollouts amount to, folded by Postgres: outcomes, reward columns with intervals, levels, histograms.

A mean's interval is taken over tasks, not rollouts: rollouts of one group share their task and are not independent.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from backend.db.models import Run
from backend.domain.statistics import Estimate, estimate_of
from backend.domain.vocabulary import Phase, RolloutStatus

REWARD = "reward"
MAX_DISTINCT = 12
"""A column with at most so many values gets a bar for each; beyond that, bins."""
BINS = 20


@dataclass(frozen=True, slots=True)
class Scope:
    """Which of a run's rollouts: all, one phase, or one training step of a phase."""

    run_id: uuid.UUID
    phase: Phase | None = None
    step: int | None = None

    def parameters(self) -> dict[str, Any]:
        return {"run": self.run_id, "phase": self.phase and str(self.phase), "step": self.step}


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram."""

    low: float
    high: float
    """Equal to `low` where the bar stands for one value."""
    count: int


@dataclass(slots=True)
class ColumnFigures:
    """One reward column, or the reward itself, over the completed rollouts of a scope."""

    name: str
    weight: float | None
    """None for the reward: it is the sum."""
    estimate: Estimate | None = None
    """Over tasks."""
    by_level: dict[int, Estimate] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    rollouts: int = 0


@dataclass(slots=True)
class Failure:
    """One kind of failure: how often, and the message seen most."""

    kind: str
    count: int
    message: str


@dataclass(slots=True)
class Outcomes:
    """How the rollouts of a scope ended, and what they cost."""

    statuses: dict[str, int] = field(default_factory=dict)
    stop_reasons: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    """Rollouts by phase."""
    latest: dict[str, int] = field(default_factory=dict)
    """Newest training step by phase."""
    truncated: int = 0
    turns: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    policy_seconds: float = 0.0
    environment_seconds: float = 0.0

    @property
    def total(self) -> int:
        return sum(self.statuses.values())

    @property
    def completed(self) -> int:
        return self.statuses.get(RolloutStatus.COMPLETED, 0)

    @property
    def failed(self) -> int:
        return self.statuses.get(RolloutStatus.FAILED, 0)


_OUTCOMES = text("""
SELECT phase, status, stop_reason, error_kind, count(*) AS amount, max(training_step) AS latest,
       count(*) FILTER (WHERE is_truncated) AS truncated, sum(turns) AS turns,
       sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out,
       sum(policy_seconds::float8) AS policy_seconds, sum(environment_seconds::float8) AS environment_seconds,
       mode() WITHIN GROUP (ORDER BY error_message) AS message
FROM rollouts
WHERE run_id = :run AND (CAST(:phase AS text) IS NULL OR phase = :phase)
  AND (CAST(:step AS int) IS NULL OR training_step = :step)
GROUP BY phase, status, stop_reason, error_kind
ORDER BY count(*) DESC
""")

_COLUMNS = text("""
WITH value AS MATERIALIZED (
    SELECT r.group_id, r.level, v.position, v.value::float8 AS value
    FROM rollouts r CROSS JOIN LATERAL unnest(array_append(r.columns, r.reward)) WITH ORDINALITY AS v(value, position)
    WHERE r.run_id = :run AND r.status = 'completed' AND (CAST(:phase AS text) IS NULL OR r.phase = :phase)
      AND (CAST(:step AS int) IS NULL OR r.training_step = :step)
), task AS (
    SELECT group_id, level, position, avg(value) AS value, count(*) AS rollouts FROM value GROUP BY 1, 2, 3
), span AS (
    SELECT position, min(value) AS low, max(value) AS high, count(DISTINCT value) AS kinds FROM value GROUP BY 1
), bar AS (
    SELECT position,
           CASE WHEN kinds <= :kinds OR high = low THEN value
                ELSE low + (least(width_bucket(value, low, high, :bins), :bins) - 1) * (high - low) / :bins
           END AS low,
           CASE WHEN kinds <= :kinds OR high = low THEN 0 ELSE (high - low) / :bins END AS width
    FROM value JOIN span USING (position)
)
SELECT CASE WHEN grouping(level) = 1 THEN 'all' ELSE 'level' END AS part, position, level,
       count(*) AS amount, avg(value) AS mean, coalesce(stddev_samp(value), 0) AS deviation, sum(rollouts) AS rollouts
FROM task GROUP BY GROUPING SETS ((position), (position, level))
UNION ALL
SELECT 'bar', position, NULL, count(*), low, width, 0 FROM bar GROUP BY position, low, width
ORDER BY 1, 2, 3, 5
""")


def outcomes(session: Session, scope: Scope) -> Outcomes:
    found = Outcomes()
    for row in session.execute(_OUTCOMES, scope.parameters()):
        _count(found.statuses, row.status, row.amount)
        _count(found.phases, row.phase, row.amount)
        if row.stop_reason:
            _count(found.stop_reasons, row.stop_reason, row.amount)
        if row.status == RolloutStatus.FAILED:
            found.failures.append(Failure(row.error_kind or "unknown", row.amount, row.message or ""))
        if row.latest is not None:
            found.latest[row.phase] = max(row.latest, found.latest.get(row.phase, 0))
        found.truncated += row.truncated
        found.turns += row.turns
        found.tokens_in += row.tokens_in
        found.tokens_out += row.tokens_out
        found.policy_seconds += row.policy_seconds
        found.environment_seconds += row.environment_seconds
    return found


def column_figures(session: Session, run: Run, scope: Scope) -> list[ColumnFigures]:
    """The reward first, then every column in declared order."""
    names = [*run.columns, REWARD]
    weights: list[float | None] = [*run.weights, None]
    figures = [ColumnFigures(name, weight) for name, weight in zip(names, weights, strict=True)]
    for row in session.execute(_COLUMNS, scope.parameters() | {"kinds": MAX_DISTINCT, "bins": BINS}):
        if row.position <= len(figures):
            _add(figures[row.position - 1], row)
    return [figures[-1], *figures[:-1]]


def _add(figure: ColumnFigures, row: Row[Any]) -> None:
    match row.part:
        case "bar":
            figure.bars.append(Bar(row.mean, row.mean + row.deviation, row.amount))
        case "level":
            figure.by_level[row.level] = estimate_of(row.mean, row.deviation, row.amount)
        case _:
            figure.estimate = estimate_of(row.mean, row.deviation, row.amount)
            figure.rollouts = int(row.rollouts)


def _count(counts: dict[str, int], key: str, count: int) -> None:
    counts[key] = counts.get(key, 0) + count
