"""Does a short series rise or fall? Mann–Kendall's test for the direction, Theil–Sen's slope for the size."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trend:
    slope: float
    """By step; the median of all pairwise slopes (Sen 1968)."""
    change: float
    """The slope over the whole window."""
    p: float
    """That there is no trend, two-sided (Mann 1945, Kendall 1975)."""

    def rises(self, p: float) -> bool:
        return self.p < p and self.slope > 0

    def falls(self, p: float) -> bool:
        return self.p < p and self.slope < 0


def trend_of(values: Sequence[float]) -> Trend:
    """A constant series has no trend."""

    from scipy import stats

    if len(values) < 3 or max(values) == min(values):
        return Trend(0.0, 0.0, 1.0)
    p = float(stats.kendalltau(range(len(values)), values).pvalue)
    slope = float(stats.theilslopes(values).slope)
    return Trend(slope, slope * (len(values) - 1), p)
