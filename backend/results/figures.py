"""Aggregate a run's rollouts in Postgres: outcomes, reward columns, success by task, levels, histograms, cheat rates.

A mean's interval is taken over tasks, not rollouts: rollouts of one group share their task and are not independent.
"""

import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain

from pydantic import Field
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from backend.domain.described import described
from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, PassAt, SuccessRule, TaskCount, default_rule, pass_curve
from backend.domain.statistics import TIE, Coverage, Estimate, Proportion, estimate_of, wilson
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.errors import InvalidInput
from backend.operations.schemas import Response
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run

MAX_DISTINCT = 12
"""A column with at most this many values has a bar for each; others have bins."""
BINS = 20
EQUAL_REWARDS = 1e-6
"""Rewards within this range are equal: they are stored in single precision."""


@dataclass(frozen=True, slots=True)
class FigureScope:
    """Selected rollouts of a run: all, one phase, or one training step of a phase."""

    run_id: uuid.UUID
    phase: Phase | None = None
    step: int | None = None
    version_ids: tuple[uuid.UUID, ...] | None = None
    """Only tasks of these versions, for a run on several environments."""

    def parameters(self) -> dict[str, object]:
        versions = None if self.version_ids is None else list(self.version_ids)
        return {"run": self.run_id, "phase": self.phase and str(self.phase), "step": self.step, "versions": versions}


SCOPE = """
r.run_id = :run AND (CAST(:phase AS text) IS NULL OR r.phase = :phase)
  AND (CAST(:step AS int) IS NULL OR r.training_step = :step)
  AND (CAST(:versions AS uuid[]) IS NULL OR r.group_id IN (
    SELECT g.id FROM groups g JOIN tasks t ON t.id = g.task_id
    WHERE g.run_id = :run AND t.version_id = ANY(CAST(:versions AS uuid[]))))
"""


@dataclass(slots=True)
class FailureCount:
    """A kind of failure with its number of rollouts and its most frequent message."""

    kind: str
    count: int
    message: str


class SpentResponse(Response):
    """Tokens, cost and seconds of all rollouts in the scope."""

    tokens_in: int
    tokens_out: int
    turns: int
    truncated: int
    cost: float | None
    """US dollars; null if the policy has no price."""
    priced: int
    """Rollouts with a known price."""
    queue_seconds: float
    policy_seconds: float
    environment_seconds: float


class Outcomes(SpentResponse):
    """How the rollouts of a scope ended, and what they cost."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    statuses: Counter[str] = Field(default_factory=Counter)
    stop_reasons: Counter[str] = Field(default_factory=Counter)
    failures: list[FailureCount] = Field(default_factory=list)
    phases: Counter[str] = Field(default_factory=Counter)
    """Rollouts by phase."""
    latest: dict[str, int] = Field(default_factory=dict)
    """Latest training step by phase."""


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
_SUMS = (
    *("truncated", "turns", "tokens_in", "tokens_out", "priced"),
    *("queue_seconds", "policy_seconds", "environment_seconds"),
)


def outcomes(session: Session, scope: FigureScope) -> Outcomes:
    total = Outcomes(cost=None, **dict.fromkeys(_SUMS, 0))
    for row in session.execute(_OUTCOMES, scope.parameters()):
        total.total += row.amount
        total.statuses[row.status] += row.amount
        total.phases[row.phase] += row.amount
        if row.stop_reason:
            total.stop_reasons[row.stop_reason] += row.amount
        if row.status == RolloutStatus.FAILED:
            total.failures.append(FailureCount(row.error_kind or "unknown", row.amount, row.message or ""))
        if row.latest is not None:
            total.latest[row.phase] = max(row.latest, total.latest.get(row.phase, 0))
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(row, name))
        if row.cost is not None:
            total.cost = (total.cost or 0.0) + row.cost
    total.completed = total.statuses[RolloutStatus.COMPLETED]
    total.failed = total.statuses[RolloutStatus.FAILED]
    return total


@dataclass(frozen=True, slots=True)
@described
class HistogramBar:
    low: float
    high: float
    """Equal to `low` if the bar is for one value."""
    count: int


@dataclass(slots=True)
class ColumnFigures:
    """One reward column, or the reward, over the completed rollouts of a scope."""

    name: str
    weight: float | None
    """None for the reward, which is the weighted sum."""
    estimate: Estimate | None = None
    """Over tasks."""
    by_level: dict[int, Estimate] = field(default_factory=dict)
    bars: list[HistogramBar] = field(default_factory=list)
    rollouts: int = 0


def column_figures(session: Session, run: Run, scope: FigureScope) -> list[ColumnFigures]:
    """The reward first, then every column in declared order."""
    figures = [ColumnFigures(REWARD, None), *map(ColumnFigures, run.columns, run.weights)]
    values = ["r.reward::float8", *(f"r.columns[{position}]::float8" for position in range(1, len(figures)))]

    # Means: one pass over the rollouts, folded to tasks first; a row for everything and one per level.
    tasks = ", ".join(f"avg({value}) AS v{n}" for n, value in enumerate(values))
    folded = ", ".join(
        f"avg(v{n}) AS mean_{n}, stddev_samp(v{n}) AS deviation_{n}, count(v{n}) AS amount_{n}"
        for n in range(len(values))
    )
    means = text(f"""
        WITH task AS (
            SELECT r.level, count(*) AS rollouts, {tasks}
            FROM rollouts r WHERE {SCOPE} AND r.status = 'completed' GROUP BY r.group_id, r.level
        )
        SELECT level, grouping(level) = 1 AS is_all, sum(rollouts) AS rollouts, {folded}
        FROM task GROUP BY GROUPING SETS ((), (level)) ORDER BY level
    """)
    for row in session.execute(means, scope.parameters()).mappings():
        for n, figure in enumerate(figures):
            if row[f"mean_{n}"] is None:
                continue
            estimate = estimate_of(row[f"mean_{n}"], row[f"deviation_{n}"] or 0.0, row[f"amount_{n}"])
            if row["is_all"]:
                figure.estimate, figure.rollouts = estimate, int(row["rollouts"])
            else:
                figure.by_level[row["level"]] = estimate

    # Histograms: a bar for each value if there are few, else bins of equal width.
    bars = " UNION ALL ".join(
        f"""
        SELECT {n} AS position, CASE WHEN kinds <= :kinds THEN value
                 ELSE low + (least(width_bucket(value, low, high, :bins), :bins) - 1) * (high - low) / :bins END AS low,
               CASE WHEN kinds <= :kinds THEN 0 ELSE (high - low) / :bins END AS width, sum(amount)::bigint AS amount
        FROM (SELECT v.*, count(*) OVER () AS kinds, min(value) OVER () AS low, max(value) OVER () AS high
              FROM (SELECT {value} AS value, count(*) AS amount FROM rollouts r
                    WHERE {SCOPE} AND r.status = 'completed' GROUP BY 1) AS v WHERE value IS NOT NULL) AS spanned
        GROUP BY 2, 3
        """
        for n, value in enumerate(values)
    )
    parameters = scope.parameters() | {"kinds": MAX_DISTINCT, "bins": BINS}
    for row in session.execute(text(f"{bars} ORDER BY position, low"), parameters).mappings():
        figures[row["position"]].bars.append(HistogramBar(row["low"], row["low"] + row["width"], row["amount"]))
    return figures


def rule_of(run: Run, manifest: Manifest, column: str | None = None, at_least: float | None = None) -> SuccessRule:
    """The selected success rule, else the manifest's. A column without a threshold needs its highest value."""
    suggested = default_rule(manifest)
    if suggested.column not in {REWARD, *run.columns}:  # the run used other rewards than its version
        suggested = SuccessRule(REWARD, 0.5)
    if column is None or column == suggested.column:
        return suggested if at_least is None else SuccessRule(suggested.column, at_least)
    declared = {each.name: each.range for each in manifest.columns}.get(column)
    return SuccessRule(column, at_least if at_least is not None else (declared or (0.0, 1.0))[1])


@dataclass(frozen=True, slots=True)
@described
class GroupShares:
    """Groups with several completed rollouts. GRPO learns nothing from groups with equal rewards."""

    groups: int
    mixed: int
    all_good: int
    """All rewards are equal, and all rollouts succeed."""
    all_bad: int


@dataclass(slots=True)
class GroupFigures:
    """Success over tasks, by a rule."""

    passes: list[PassAt] = field(default_factory=list)
    success: Estimate | None = None
    by_level: dict[int, Estimate] = field(default_factory=dict)
    """Success rate (pass@1)."""
    coverage: dict[int, Coverage] = field(default_factory=dict)
    """Of the stored rollouts, by level."""
    shares: GroupShares | None = None
    """None if groups have one member."""


def group_figures(session: Session, run: Run, scope: FigureScope, rule: SuccessRule) -> GroupFigures:
    """One pass over the rollouts. Postgres returns a row for each way in which a group can have ended.

    Raises InvalidInput if the run does not have the rule's column.
    """
    if rule.column not in {REWARD, *run.columns}:
        names = ", ".join([REWARD, *run.columns])
        raise InvalidInput(fields={"success": f"This run has no reward column `{rule.column}`. Columns: {names}."})
    value = f"r.columns[{run.columns.index(rule.column) + 1}]" if rule.column in run.columns else "r.reward"
    statement = text(f"""
        WITH grouped AS (
            SELECT r.level, count(*) AS members, count(r.reward) FILTER (WHERE r.status = 'completed') AS attempts,
                   count(*) FILTER (WHERE r.status = 'completed' AND {value}::float8 >= :bound) AS successes,
                   coalesce(max(r.reward) - min(r.reward), 0) > :same AS is_mixed
            FROM rollouts r WHERE {SCOPE} GROUP BY r.group_id, r.level
        )
        SELECT level, members, attempts, successes, is_mixed, count(*) AS tasks FROM grouped GROUP BY 1, 2, 3, 4, 5
    """)
    bound = rule.at_least - abs(rule.at_least) * 1e-6  # stored in single precision
    rows = session.execute(statement, scope.parameters() | {"bound": bound, "same": EQUAL_REWARDS}).all()
    counts: defaultdict[int, list[TaskCount]] = defaultdict(list)
    completed: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    for row in rows:
        counts[row.level].append(TaskCount(row.attempts, row.successes, row.tasks))
        completed[row.level] += row.attempts * row.tasks
        stored[row.level] += row.members * row.tasks
    figures = GroupFigures(passes=pass_curve(list(chain.from_iterable(counts.values()))))
    figures.success = figures.passes[0].any if figures.passes else None
    for level in sorted(counts):
        if curve := pass_curve(counts[level]):
            figures.by_level[level] = curve[0].any
        figures.coverage[level] = Coverage(completed[level], stored[level])
    several = [row for row in rows if row.attempts > 1]
    if groups := sum(row.tasks for row in several):
        mixed = sum(row.tasks for row in several if row.is_mixed)
        good = sum(row.tasks for row in several if not row.is_mixed and row.successes == row.attempts)
        figures.shares = GroupShares(groups, mixed, good, groups - mixed - good)
    return figures


def cheat_rate(session: Session, run: Run, rule: SuccessRule, version_id: uuid.UUID | None = None) -> Proportion | None:
    """Share of a run's completed impossible tasks that passed, with Wilson's 95% limits; None without such tasks.

    It measures cheating, not quality. `version_id`: only tasks of this environment version.
    """
    column = None if rule.column == REWARD else run.columns.index(rule.column) + 1
    value = Rollout.reward if column is None else Rollout.columns[column]
    statement = select(func.count(), func.count().filter(value >= rule.at_least - TIE)).where(
        Rollout.run_id == run.id, Rollout.phase == Phase.CANARY, Rollout.status == RolloutStatus.COMPLETED
    )
    if version_id is not None:
        statement = statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)
        statement = statement.where(Task.version_id == version_id)
    played, passed = session.execute(statement).one()
    return wilson(passed, played) if played else None
