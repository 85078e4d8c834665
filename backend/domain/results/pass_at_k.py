"""Unbiased estimates of success in k attempts at a task: pass@k (at least one succeeds) and pass^k (all succeed).

pass@k: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, equation 1.
pass^k: Yao et al. 2024, "τ-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains", arXiv:2406.12045.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend.domain.environments.manifest import Manifest, RewardColumn
from backend.domain.rollouts.fields import column_field_name
from backend.domain.statistics import TIE, Estimate, estimate_of

REWARD = "reward"
SUCCESS_COLUMNS = ("win", "success", "solved", "complete", "correct", "exact", "passed", "goal")
"""Column names that mean success. The first one in a manifest decides."""
MAX_EVERY_K = 8
"""Every k up to this one is shown, then the powers of two and the largest k."""


@dataclass(frozen=True, slots=True)
class SuccessRule:
    """A rollout succeeds if this column, or the reward, reaches a value."""

    column: str
    at_least: float

    @property
    def expression(self) -> str:
        """As a filter of rollouts."""
        name = self.column if self.column == REWARD else column_field_name(self.column)
        return f"{name} >= {self.at_least:g}"

    def is_met(self, reward: float | None, columns: Mapping[str, float]) -> bool:
        """Stored values are single precision: one this close to the bar reaches it, as in a filter."""
        value = reward if self.column == REWARD else columns.get(self.column)
        return value is not None and value >= self.at_least - TIE * max(1.0, abs(self.at_least))


@dataclass(frozen=True, slots=True)
class TaskCount:
    """Number of tasks with this many completed rollouts and successes."""

    attempts: int
    successes: int
    tasks: int


@dataclass(frozen=True, slots=True)
class PassAt:
    """Both estimates at one k. Intervals are taken over the tasks with at least k completed rollouts."""

    k: int
    any: Estimate
    """pass@k: at least one of k succeeds."""
    all: Estimate
    """pass^k: all of k succeed."""
    tasks: int


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """1 − C(n−c, k) / C(n, k): probability that k of n attempts include a success."""
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """C(c, k) / C(n, k): probability that k of n attempts are all successes."""
    return math.comb(successes, k) / math.comb(attempts, k)


def pass_curve(counts: Iterable[TaskCount]) -> list[PassAt]:
    """Both estimates for k from 1 to the largest number of completed rollouts of a task."""
    played = [count for count in counts if count.attempts]
    curve = []
    for k in shown_ks(max((count.attempts for count in played), default=0)):
        enough = [count for count in played if count.attempts >= k]
        estimates = []
        for estimator in (pass_at_k, pass_hat_k):
            values = [(estimator(each.attempts, each.successes, k), each.tasks) for each in enough]
            total = sum(tasks for _, tasks in values)
            mean = math.fsum(value * tasks for value, tasks in values) / total
            squares = math.fsum(tasks * (value - mean) ** 2 for value, tasks in values)
            estimate = estimate_of(mean, math.sqrt(squares / (total - 1)) if total > 1 else 0.0, total)
            low, high = max(0.0, estimate.low), min(1.0, estimate.high)
            estimates.append(Estimate(estimate.mean, low, high, estimate.count))
        at_least_one, every = estimates
        curve.append(PassAt(k, at_least_one, every, sum(count.tasks for count in enough)))
    return curve


def shown_ks(largest: int) -> list[int]:
    if largest <= MAX_EVERY_K:
        return list(range(1, largest + 1))
    powers = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    return powers if powers[-1] == largest else [*powers, largest]


def default_rule(manifest: Manifest) -> SuccessRule:
    """The column that is named for success at its highest value, else half of the possible reward."""
    by_name = {column.name: column for column in manifest.columns}
    for name in SUCCESS_COLUMNS:
        if name in by_name and by_name[name].weight > 0:
            return SuccessRule(name, (by_name[name].range or (0.0, 1.0))[1])
    low, high = possible_rewards(manifest.columns)
    return SuccessRule(REWARD, round((low + high) / 2, 6))


def possible_rewards(columns: Sequence[RewardColumn]) -> tuple[float, float]:
    """The lowest and highest weighted sum. Columns without a declared range are between 0 and 1."""
    ends = [[column.weight * end for end in column.range or (0.0, 1.0)] for column in columns]
    return math.fsum(map(min, ends)), math.fsum(map(max, ends))
