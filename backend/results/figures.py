"""Figures of a run: outcomes, reward columns, success by task, levels, histograms, cheat rates.

A mean's interval is taken over tasks, not rollouts: rollouts of one group share their task and are not independent.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from pydantic import Field
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.described import described
from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, PassAt, SuccessRule, TaskCount, default_rule, pass_curve
from backend.domain.statistics import TIE, Coverage, Estimate, Proportion, estimate_mean, wilson
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.errors import InvalidInput
from backend.operations.schemas import Response
from backend.results.rewards import FigureScope, RunRewards, count_outcomes
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_DISTINCT = 12
"""A column with at most this many values has a bar for each; others have bins."""
BINS = 20
EQUAL_REWARDS = 1e-6
"""Rewards within this range are equal: they are stored in single precision."""


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


_SUMS = (
    *("truncated", "turns", "tokens_in", "tokens_out", "priced"),
    *("queue_seconds", "policy_seconds", "environment_seconds"),
)


def outcomes(session: Session, scope: FigureScope) -> Outcomes:
    total = Outcomes(cost=None, **dict.fromkeys(_SUMS, 0))
    rows = count_outcomes(session, scope)
    messages: dict[tuple[str, str | None], str | None] = {}
    if any(row["status"] == RolloutStatus.FAILED for row in rows):
        found = text(f"""
            SELECT r.phase, r.error_kind, mode() WITHIN GROUP (ORDER BY r.error_message) AS message
            FROM rollouts r WHERE {scope.condition} AND r.status = 'failed' GROUP BY 1, 2
        """)
        messages = {(row.phase, row.error_kind): row.message for row in session.execute(found, scope.parameters())}
    for row in rows:
        amount, phase, kind = row["amount"], row["phase"], row["error_kind"]
        total.total += amount
        total.statuses[row["status"]] += amount
        total.phases[phase] += amount
        if row["stop_reason"]:
            total.stop_reasons[row["stop_reason"]] += amount
        if row["status"] == RolloutStatus.FAILED:
            total.failures.append(FailureCount(kind or "unknown", amount, messages.get((phase, kind)) or ""))
        if row["latest"] is not None:
            total.latest[phase] = max(row["latest"], total.latest.get(phase, 0))
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + row[name])
        if row["cost"] is not None:
            total.cost = (total.cost or 0.0) + row["cost"]
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


def column_figures(run: Run, rewards: RunRewards) -> list[ColumnFigures]:
    """The reward first, then every column in declared order."""
    import numpy as np

    figures = [ColumnFigures(REWARD, None), *map(ColumnFigures, run.columns, run.weights)]
    levels, rollouts = rewards.groups["level"], int(rewards.is_completed.sum())
    parts = {level: rewards.means[levels == level] for level in np.unique(levels[rewards.completed > 0]).tolist()}
    for place, figure in enumerate(figures):
        figure.estimate = _estimate(rewards.means[:, place])
        figure.rollouts = rollouts if figure.estimate else 0
        for level, means in parts.items():
            if (estimate := _estimate(means[:, place])) is not None:
                figure.by_level[level] = estimate
        values = rewards.values[rewards.is_completed, place]
        figure.bars = _histogram(values[~np.isnan(values)])
    return figures


def _estimate(means: "NDArray[np.float64]") -> Estimate | None:
    import numpy as np

    return estimate_mean(means[~np.isnan(means)])


def _histogram(values: "NDArray[np.float64]") -> list[HistogramBar]:
    """A bar for each value if there are few, else bins of equal width. Empty bins have none."""
    import numpy as np

    kinds, counts = np.unique(values, return_counts=True)
    if len(kinds) <= MAX_DISTINCT:
        return list(map(HistogramBar, kinds.tolist(), kinds.tolist(), counts.tolist()))
    low, width = float(kinds[0]), float(kinds[-1] - kinds[0]) / BINS
    bins = np.minimum((BINS * ((kinds - low) / (kinds[-1] - low))).astype(int), BINS - 1)
    amounts = enumerate(np.bincount(bins, counts).astype(int).tolist())
    return [HistogramBar(low + place * width, low + (place + 1) * width, amount) for place, amount in amounts if amount]


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


def group_figures(run: Run, rewards: RunRewards, rule: SuccessRule) -> GroupFigures:
    """Raises InvalidInput if the run does not have the rule's column."""
    import numpy as np

    if rule.column not in {REWARD, *run.columns}:
        names = ", ".join([REWARD, *run.columns])
        raise InvalidInput(fields={"success": f"This run has no reward column `{rule.column}`. Columns: {names}."})
    if not len(rewards):
        return GroupFigures()
    # Groups that ended in the same way are counted together: there are few ways.
    reward = rewards.values[:, 0]
    bound = rule.at_least - abs(rule.at_least) * 1e-6  # stored in single precision
    is_success = rewards.is_completed & (_of_rule(run, rewards, rule) >= bound)
    reach = np.fmax.reduceat(reward, rewards.starts) - np.fmin.reduceat(reward, rewards.starts)
    ways = (
        *(rewards.groups["level"].astype(np.int64), rewards.groups["members"].astype(np.int64)),
        *(rewards.total(rewards.is_completed & ~np.isnan(reward)), rewards.total(is_success)),
        (reach > EQUAL_REWARDS).astype(np.int64),
    )
    numbers = np.ravel_multi_index([way - way.min() for way in ways], [int(np.ptp(way)) + 1 for way in ways])
    _, first, amounts = np.unique(numbers, return_index=True, return_counts=True)
    rows = list(zip(*(way[first].tolist() for way in ways), amounts.tolist(), strict=True))

    counts: defaultdict[int, list[TaskCount]] = defaultdict(list)
    completed: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    for level, members, attempts, successes, _, tasks in rows:
        counts[level].append(TaskCount(attempts, successes, tasks))
        completed[level] += attempts * tasks
        stored[level] += members * tasks
    figures = GroupFigures(passes=pass_curve(list(chain.from_iterable(counts.values()))))
    figures.success = figures.passes[0].any if figures.passes else None
    for level in sorted(counts):
        if curve := pass_curve(counts[level]):
            figures.by_level[level] = curve[0].any
        figures.coverage[level] = Coverage(completed[level], stored[level])
    several = [row[2:] for row in rows if row[2] > 1]
    if groups := sum(tasks for *_, tasks in several):
        mixed = sum(tasks for _, _, is_mixed, tasks in several if is_mixed)
        good = sum(tasks for attempts, won, is_mixed, tasks in several if not is_mixed and won == attempts)
        figures.shares = GroupShares(groups, mixed, good, groups - mixed - good)
    return figures


def cheat_rate(run: Run, rewards: RunRewards, rule: SuccessRule) -> Proportion | None:
    """Share of the completed impossible tasks that passed, with Wilson's 95% limits; None without such tasks.

    It measures cheating, not quality.
    """
    canaries = rewards.of_phase(Phase.CANARY)
    is_passed = canaries.is_completed & (_of_rule(run, canaries, rule) >= rule.at_least - TIE)
    played = int(canaries.is_completed.sum())
    return wilson(int(is_passed.sum()), played) if played else None


def _of_rule(run: Run, rewards: RunRewards, rule: SuccessRule) -> "NDArray[np.float64]":
    """The value that decides success, by rollout."""
    return rewards.values[:, 0 if rule.column == REWARD else 1 + run.columns.index(rule.column)]
