"""Means with intervals, paired differences and their tests. The statistics themselves are scipy's.

numpy and scipy are imported where they are used: they take longer than the web's own start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.95
MAX_BOOTSTRAP = 1000
"""Pairs above which the mean is normal enough and the bootstrap's memory (pairs squared) is too large."""
MAX_PERMUTED = 500
"""Pairs above which the mean difference is tested as normal, because permutations would take seconds."""
PERMUTATIONS = 1999
TIE = 1e-6
"""Smaller differences are ties: values are stored in single precision."""
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.count > 1 and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share of a sample with Wilson's 95% limits; of an empty sample from 0 to 1."""

    found: int
    looked_at: int
    low: float = 0.0
    high: float = 1.0

    @property
    def value(self) -> float | None:
        return self.found / self.looked_at if self.looked_at else None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Number of planned rollouts that have a reward: part of every average."""

    completed: int
    total: int

    @property
    def is_whole(self) -> bool:
        return self.completed >= self.total

    @property
    def share(self) -> float:
        return self.completed / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.completed:,} of {self.total:,} completed"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """How often the second of a pair is higher, and the probability of a result at least as uneven by chance."""

    wins: int
    losses: int
    ties: int
    sign: float | None
    """Two-sided p of the exact sign test; None if all are ties."""
    permutation: float | None
    """Two-sided p of the mean difference when the signs of the differences are drawn at random."""


@lru_cache(4096)
def wilson(found: int, looked_at: int) -> Proportion:
    """(p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n), Wilson 1927. In closed form: the import of scipy.stats takes
    longer than a page may."""
    if not looked_at:
        return Proportion(0, 0)
    share, squared = found / looked_at, _Z**2 / looked_at
    reach = _Z * math.sqrt(share * (1 - share) / looked_at + squared / (4 * looked_at))
    low, high = (share + squared / 2 - reach) / (1 + squared), (share + squared / 2 + reach) / (1 + squared)
    return Proportion(found, looked_at, low if found else 0.0, high if found < looked_at else 1.0)


def estimate_mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate | None:
    """Return the mean with Student's t interval (95%); None for no values."""
    if not len(values):
        return None
    import numpy as np

    array = np.asarray(values, dtype=float)
    deviation = float(array.std(ddof=1)) if np.ptp(array) else 0.0  # of equal values, rounding leaves a rest
    return estimate_of(float(array.mean()), deviation, len(array))


def estimate_of(mean: float, deviation: float, count: int) -> Estimate:
    """Return the same from mean, sample standard deviation and count, which the database computed."""
    if count < 2 or deviation == 0.0:
        return Estimate(mean, mean, mean, count)
    from scipy.special import stdtrit

    reach = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(count)
    return Estimate(mean, mean - reach, mean + reach, count)


def weighted_mean(strata: Sequence[tuple[float, Sequence[float]]]) -> Estimate | None:
    """Return the mean over strata `(weight, values)` with Welch-Satterthwaite's t interval; None if one is empty."""
    if not strata or not all(len(values) for _, values in strata):
        return None
    if len(strata) == 1:
        return estimate_mean(strata[0][1])
    import numpy as np
    from scipy.special import stdtrit

    total = math.fsum(weight for weight, _ in strata)
    shares = [weight / total for weight, _ in strata]
    arrays = [np.asarray(values, dtype=float) for _, values in strata]
    count = sum(map(len, arrays))
    mean = math.fsum(share * float(array.mean()) for share, array in zip(shares, arrays, strict=True))
    parts = [(s**2 * float(a.var(ddof=1)) / len(a), len(a)) for s, a in zip(shares, arrays, strict=True) if len(a) > 1]
    variance = math.fsum(part for part, _ in parts)
    if variance == 0.0:
        return Estimate(mean, mean, mean, count)
    freedom = variance**2 / math.fsum(part**2 / (size - 1) for part, size in parts)
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
    return Estimate(mean, mean - reach, mean + reach, count)


def paired_difference(
    before: Sequence[float] | NDArray[np.float64], after: Sequence[float] | NDArray[np.float64]
) -> Estimate | None:
    """Return the mean of after - before with the BCa bootstrap interval (Efron 1987), with a fixed seed."""
    import numpy as np

    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if not len(differences):
        return None
    mean = float(differences.mean())
    if len(differences) < 2 or np.ptp(differences) == 0.0:
        return Estimate(mean, mean, mean, len(differences))
    if len(differences) > MAX_BOOTSTRAP:
        return estimate_mean(differences)
    from scipy import stats

    result = stats.bootstrap(
        (differences,),
        np.mean,
        n_resamples=2000,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(0),
    )
    interval = result.confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high), len(differences))


def paired_test(
    before: Sequence[float] | NDArray[np.float64], after: Sequence[float] | NDArray[np.float64]
) -> PairedTest:
    """Run the exact sign test on pairs that differ and a sign-flip permutation test of the mean, with a fixed seed."""
    import numpy as np
    from scipy.special import bdtr, stdtr

    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    count, wins, losses = len(differences), int((differences > TIE).sum()), int((differences < -TIE).sum())
    sign = min(1.0, 2 * float(bdtr(min(wins, losses), wins + losses, 0.5))) if wins + losses else None
    permutation = None
    if not wins + losses or count < 2:
        pass  # nothing to test
    elif count > MAX_PERMUTED and np.ptp(differences) <= TIE:
        permutation = 0.0
    elif count > MAX_PERMUTED:  # Student's t; scipy.stats would first be imported for a second
        statistic = float(differences.mean() / (differences.std(ddof=1) / math.sqrt(count)))
        permutation = 2 * float(stdtr(count - 1, -abs(statistic)))
    else:
        from scipy import stats

        result = stats.permutation_test(
            (differences,),
            lambda sample, axis: sample.mean(axis=axis),
            permutation_type="samples",
            n_resamples=PERMUTATIONS,
            batch=500,
            vectorized=True,
            rng=np.random.default_rng(0),
        )
        permutation = float(result.pvalue)
    return PairedTest(wins, losses, count - wins - losses, sign, permutation)
