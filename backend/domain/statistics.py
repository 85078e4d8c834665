"""Means with intervals and paired differences. The statistics themselves are scipy's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.count > 1 and (self.low > 0 or self.high < 0)


def estimate_mean(values: Sequence[float]) -> Estimate | None:
    """Mean with Student's t interval (95 %); None for no values."""
    if not len(values):
        return None
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    error = float(stats.sem(array)) if len(array) > 1 else 0.0
    if error == 0.0:
        return Estimate(mean, mean, mean, len(array))
    low, high = stats.t.interval(CONFIDENCE, len(array) - 1, loc=mean, scale=error)
    return Estimate(mean, float(low), float(high), len(array))


def paired_difference(before: Sequence[float], after: Sequence[float]) -> Estimate | None:
    """Mean of after - before over pairs, with the BCa bootstrap interval (Efron 1987); fixed resampling seed."""
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if not len(differences):
        return None
    mean = float(differences.mean())
    if len(differences) < 2 or np.ptp(differences) == 0.0:
        return Estimate(mean, mean, mean, len(differences))
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
