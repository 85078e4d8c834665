"""Sample sizes: how many tasks a paired comparison needs to detect a difference.

Both sides play the same n tasks, k rollouts each, and the mean of the n differences is tested by Student's t. For task
t let d_t be the difference of the sides' means. Its variance is

    V(k) = τ² + (σ₁² + σ₂²) / k

with τ² the variance of the true differences between tasks and σ² the variance of rollouts of one task, so rollouts are
clustered by task: more rollouts per task lower only the second part (Miller 2024, Adding Error Bars to Evals,
arXiv:2411.00640, §§2.2, 4 and 5). The power of the two-sided test at 5% for a true difference x is, with the noncentral
t distribution of n − 1 degrees of freedom and noncentrality λ = x √(n / V(k)) (Cohen 1988, Statistical Power Analysis
for the Behavioral Sciences, ch. 2),

    power = P(|T(n − 1, λ)| > t(n − 1; 0.975)),

and n is the smallest number of tasks that reaches the power. For many tasks, n ≈ (z(0.975) + z(power))² V(k) / x².
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from backend.domain.described import described
from backend.domain.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POWER = 0.8
"""Default probability of detecting a difference that exists."""
MAX_TASKS = 10_000_000
"""More tasks than this are not searched."""


@dataclass(frozen=True, slots=True)
class TaskSpreads:
    """The completed rollouts of each task: their number, mean and sample variance."""

    counts: "NDArray[np.int64]"
    means: "NDArray[np.float64]"
    variances: "NDArray[np.float64]"
    """NaN for a single rollout."""


@dataclass(frozen=True, slots=True)
@described
class DifferenceVariance:
    """Parts of the variance of a task's difference between two sides."""

    between: float
    """τ², the variance of the true differences between tasks."""
    within: float
    """σ₁² + σ₂², the variances of rollouts of one task."""
    is_split: bool
    """False if tasks have one rollout: then all of the variance counts as between tasks."""

    def of_task(self, group_size: int) -> float:
        """V(k), the variance of the difference at a task with this many rollouts per side."""
        return self.between + self.within / group_size


def difference_variance(before: TaskSpreads, after: TaskSpreads | None = None) -> DifferenceVariance | None:
    """Estimate both parts from the same tasks of two sides, in the same order; None for fewer than two tasks.

    With one side, the other is assumed to vary as much and its tasks to be uncorrelated with the first one's, which
    asks for more tasks than most pairs of policies need.
    """
    if len(before.means) < 2:
        return None
    import numpy as np

    within = noise = 0.0
    is_split = True
    for side in [before] if after is None else [before, after]:
        known = ~np.isnan(side.variances)
        if not known.any():
            is_split = False
            continue
        freedom = side.counts[known] - 1
        own = float(np.dot(freedom, side.variances[known]) / freedom.sum())
        within += own
        noise += own * float(np.mean(1 / side.counts))
    total = float(np.var(before.means if after is None else after.means - before.means, ddof=1))
    if not is_split:
        within = noise = 0.0
    scale = 2.0 if after is None else 1.0
    return DifferenceVariance(scale * max(0.0, total - noise), scale * within, is_split)


def power_of(tasks: int, difference: float, variance: float) -> float:
    """Return the probability that a paired t test over this many tasks detects the difference.

    The noncentral t is integrated over the sample deviation S, √(χ²(n − 1) / (n − 1)), by 64 Gauss-Legendre nodes:
    E[Φ(λ − t S) + Φ(−λ − t S)].
    """
    if tasks < 2:
        return 0.0
    if variance <= 0.0:
        return 1.0
    import numpy as np
    from scipy.special import gammaincinv, ndtr, stdtrit

    nodes, weights = _nodes()
    freedom = tasks - 1
    shift, limit = abs(difference) * math.sqrt(tasks / variance), float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    deviations = np.sqrt(gammaincinv(freedom / 2, (nodes + 1) / 2) * 2 / freedom)
    detected = ndtr(shift - limit * deviations) + ndtr(-shift - limit * deviations)
    return float(np.dot(weights, detected) / 2)


@lru_cache(maxsize=1)
def _nodes() -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Return 64 Gauss-Legendre nodes and their weights, which take a millisecond to compute."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(64)
    return nodes, weights


def tasks_needed(difference: float, variance: float, power: float = POWER) -> int | None:
    """Return the smallest number of tasks that detects the difference with this power; None above `MAX_TASKS`."""
    low, high = 1, 2
    while power_of(high, difference, variance) < power:
        low, high = high, 2 * high
        if low > MAX_TASKS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle, difference, variance) >= power else (middle, high)
    return high


def detectable_difference(tasks: int, variance: float, power: float = POWER) -> float | None:
    """Return the smallest difference that this many tasks detect with this power; None for fewer than two tasks."""
    if tasks < 2:
        return None
    low, high = 0.0, 3.0 * math.sqrt(variance / tasks)
    while power_of(tasks, high, variance) < power:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(tasks, middle, variance) >= power else (middle, high)
    return high
