"""What a run's rollouts amount to, folded by Postgres: outcomes, reward columns with intervals, levels, histograms.

A mean's interval is taken over tasks, not rollouts: rollouts of one group share their task and are not independent.
"""

import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import RowMapping, TextClause, text
from sqlalchemy.orm import Session

from backend.domain.statistics import Estimate, estimate_of
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.runs.tables import Run

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
    version_ids: tuple[uuid.UUID, ...] | None = None
    """Only tasks of these versions, where a run plays several environments."""

    @property
    def expression(self) -> str:
        """As a filter of the run's rollouts; empty for all of them."""
        parts = [f"phase = {self.phase}"] if self.phase else []
        return " and ".join([*parts, *([f"step = {self.step}"] if self.step is not None else [])])

    def parameters(self) -> dict[str, Any]:
        versions = None if self.version_ids is None else list(self.version_ids)
        return {"run": self.run_id, "phase": self.phase and str(self.phase), "step": self.step, "versions": versions}


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
    queue_seconds: float = 0.0
    policy_seconds: float = 0.0
    environment_seconds: float = 0.0
    cost: float | None = None
    """In US dollars, of the rollouts whose price is known; None where none is."""
    priced: int = 0
    """Rollouts whose price is known."""

    @property
    def total(self) -> int:
        return sum(self.statuses.values())

    @property
    def completed(self) -> int:
        return self.statuses.get(RolloutStatus.COMPLETED, 0)

    @property
    def failed(self) -> int:
        return self.statuses.get(RolloutStatus.FAILED, 0)


SCOPE = """
r.run_id = :run AND (CAST(:phase AS text) IS NULL OR r.phase = :phase)
  AND (CAST(:step AS int) IS NULL OR r.training_step = :step)
  AND (CAST(:versions AS uuid[]) IS NULL OR r.group_id IN (
    SELECT g.id FROM groups g JOIN tasks t ON t.id = g.task_id
    WHERE g.run_id = :run AND t.version_id = ANY(CAST(:versions AS uuid[]))))
"""

_OUTCOMES = text(f"""
WITH counted AS (
    SELECT r.phase, r.status, r.stop_reason, r.error_kind, count(*) AS amount, max(r.training_step) AS latest,
           count(*) FILTER (WHERE r.is_truncated) AS truncated, sum(r.turns) AS turns,
           sum(r.tokens_in) AS tokens_in, sum(r.tokens_out) AS tokens_out,
           sum(r.cost) AS cost, count(r.cost) AS priced, sum(r.queue_seconds::float8) AS queue_seconds,
           sum(r.policy_seconds::float8) AS policy_seconds, sum(r.environment_seconds::float8) AS environment_seconds
    FROM rollouts r WHERE {SCOPE} GROUP BY 1, 2, 3, 4
), said AS (
    SELECT r.phase, r.error_kind, mode() WITHIN GROUP (ORDER BY r.error_message) AS message
    FROM rollouts r WHERE {SCOPE} AND r.status = 'failed' GROUP BY 1, 2
)
SELECT c.*, s.message FROM counted c LEFT JOIN said s
    ON c.status = 'failed' AND s.phase = c.phase AND s.error_kind IS NOT DISTINCT FROM c.error_kind
ORDER BY c.amount DESC
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
        found.queue_seconds += row.queue_seconds
        found.policy_seconds += row.policy_seconds
        found.environment_seconds += row.environment_seconds
        found.priced += row.priced
        if row.cost is not None:
            found.cost = (found.cost or 0.0) + row.cost
    return found


def column_figures(session: Session, run: Run, scope: Scope) -> list[ColumnFigures]:
    """The reward first, then every column in declared order."""
    figures = [ColumnFigures(REWARD, None), *map(ColumnFigures, run.columns, run.weights)]
    for row in session.execute(_means(len(run.columns)), scope.parameters()).mappings():
        for position, figure in enumerate(figures):
            _add_mean(figure, row, position)
    bins = {"kinds": MAX_DISTINCT, "bins": BINS}
    for row in session.execute(_bars(len(run.columns)), scope.parameters() | bins).mappings():
        figures[row["position"]].bars.append(Bar(row["low"], row["low"] + row["width"], row["amount"]))
    return figures


def _add_mean(figure: ColumnFigures, row: RowMapping, position: int) -> None:
    mean, count = row[f"mean_{position}"], row[f"amount_{position}"]
    if mean is None:
        return
    estimate = estimate_of(mean, row[f"deviation_{position}"] or 0.0, count)
    if row["is_all"]:
        figure.estimate, figure.rollouts = estimate, int(row["rollouts"])
    else:
        figure.by_level[row["level"]] = estimate


def _values(columns: int) -> list[str]:
    """SQL of each figure's value in a rollout: the reward, then the columns by position."""
    return ["r.reward::float8", *(f"r.columns[{position}]::float8" for position in range(1, columns + 1))]


@lru_cache(maxsize=64)
def _means(columns: int) -> TextClause:
    """One pass over the rollouts, folded to tasks first; a row for everything and one a level."""
    tasks = ", ".join(f"avg({value}) AS v{n}" for n, value in enumerate(_values(columns)))
    folded = ", ".join(
        f"avg(v{n}) AS mean_{n}, stddev_samp(v{n}) AS deviation_{n}, count(v{n}) AS amount_{n}"
        for n in range(columns + 1)
    )
    return text(f"""
        WITH task AS (
            SELECT r.level, count(*) AS rollouts, {tasks}
            FROM rollouts r WHERE {SCOPE} AND r.status = 'completed' GROUP BY r.group_id, r.level
        )
        SELECT level, grouping(level) = 1 AS is_all, sum(rollouts) AS rollouts, {folded}
        FROM task GROUP BY GROUPING SETS ((), (level)) ORDER BY level
    """)


@lru_cache(maxsize=64)
def _bars(columns: int) -> TextClause:
    """Histograms of all columns: a bar for each value where they are few, else bins of equal width."""
    parts = [
        f"""
        SELECT {n} AS position, CASE WHEN kinds <= :kinds THEN value
                 ELSE low + (least(width_bucket(value, low, high, :bins), :bins) - 1) * (high - low) / :bins END AS low,
               CASE WHEN kinds <= :kinds THEN 0 ELSE (high - low) / :bins END AS width, sum(amount)::bigint AS amount
        FROM (SELECT v.*, count(*) OVER () AS kinds, min(value) OVER () AS low, max(value) OVER () AS high
              FROM (SELECT {value} AS value, count(*) AS amount FROM rollouts r
                    WHERE {SCOPE} AND r.status = 'completed' GROUP BY 1) AS v WHERE value IS NOT NULL) AS spanned
        GROUP BY 2, 3
        """
        for n, value in enumerate(_values(columns))
    ]
    return text(" UNION ALL ".join(parts) + " ORDER BY position, low")


def _count(counts: dict[str, int], key: str, count: int) -> None:
    counts[key] = counts.get(key, 0) + count
