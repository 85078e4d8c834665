"""How often k attempts at a task succeed: pass@k (at least one of them) and pass^k (all of them), without bias.

pass@k: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, equation 1.
pass^k: Yao et al. 2024, "τ-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains", arXiv:2406.12045.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backend.domain.environments.manifest import Manifest, RewardColumn
from backend.domain.statistics import Estimate, estimate_of

REWARD = "reward"
SUCCESS_COLUMNS = ("win", "success", "solved", "complete", "correct", "exact", "passed", "goal")
"""Names that say by themselves what succeeding is, the first that a manifest has counts."""
ALL_UP_TO = 8
"""Every k up to here is shown; beyond it the powers of two and the largest."""


@dataclass(frozen=True, slots=True)
class SuccessRule:
    """A rollout succeeds when this column (or the reward) is at least so much."""

    column: str
    at_least: float

    @property
    def expression(self) -> str:
        """In the words of a filter of rollouts."""
        return f"{self.column} >= {self.at_least:g}"


@dataclass(frozen=True, slots=True)
class TaskCount:
    """So many tasks had `successes` of `attempts` completed rollouts succeed."""

    attempts: int
    successes: int
    tasks: int


@dataclass(frozen=True, slots=True)
class PassAt:
    """Both estimates at one k, over the tasks with at least k completed rollouts; intervals are over tasks."""

    k: int
    any: Estimate
    """pass@k: at least one of k succeeds."""
    all: Estimate
    """pass^k: all of k succeed."""
    tasks: int


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """1 − C(n−c, k) / C(n, k): the chance that k drawn of n attempts hold a success."""
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, successes: int, k: int) -> float:
    """C(c, k) / C(n, k): the chance that k drawn of n attempts are all successes."""
    return math.comb(successes, k) / math.comb(attempts, k)


def pass_curve(counts: Iterable[TaskCount]) -> list[PassAt]:
    """Both figures for k from 1 to the largest number of completed rollouts of a task."""
    known = [count for count in counts if count.attempts]
    most = max((count.attempts for count in known), default=0)
    return [_pass_at(k, [count for count in known if count.attempts >= k]) for k in shown_ks(most)]


def shown_ks(most: int) -> list[int]:
    if most <= ALL_UP_TO:
        return list(range(1, most + 1))
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return powers if powers[-1] == most else [*powers, most]


def default_rule(manifest: Manifest) -> SuccessRule:
    """The column that is named for it at its highest value, else half of what the reward can be."""
    by_name = {column.name: column for column in manifest.columns}
    for name in SUCCESS_COLUMNS:
        if name in by_name and by_name[name].weight > 0:
            return SuccessRule(name, (by_name[name].range or (0.0, 1.0))[1])
    low, high = possible_rewards(manifest.columns)
    return SuccessRule(REWARD, round((low + high) / 2, 6))


def possible_rewards(columns: Sequence[RewardColumn]) -> tuple[float, float]:
    """The lowest and highest weighted sum; a column of which nothing is declared lies between 0 and 1."""
    ends = [[column.weight * end for end in column.range or (0.0, 1.0)] for column in columns]
    return math.fsum(map(min, ends)), math.fsum(map(max, ends))


def _pass_at(k: int, counts: Sequence[TaskCount]) -> PassAt:
    return PassAt(
        k,
        _over_tasks([(pass_at_k(count.attempts, count.successes, k), count.tasks) for count in counts]),
        _over_tasks([(pass_hat_k(count.attempts, count.successes, k), count.tasks) for count in counts]),
        sum(count.tasks for count in counts),
    )


def _over_tasks(values: Sequence[tuple[float, int]]) -> Estimate:
    """Mean with its interval, cut to what a share can be."""
    total = sum(tasks for _, tasks in values)
    mean = math.fsum(value * tasks for value, tasks in values) / total
    squares = math.fsum(tasks * (value - mean) ** 2 for value, tasks in values)
    found = estimate_of(mean, math.sqrt(squares / (total - 1)) if total > 1 else 0.0, total)
    return Estimate(found.mean, max(0.0, found.low), min(1.0, found.high), found.count)
