"""Curves of several runs in one chart: smoothing, thinning, and the mean of a group of runs with its band.

numpy and scipy are imported where they are used: they take longer than the web's own start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from backend.domain.statistics import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

VIEWPORT = 1000
"""The width of a chart in the formula of `smooth`: a point this far to the left, in a thousandth of the width, has its
weight raised to this power."""
HIGHEST_WEIGHT = 0.999
MOST_OF_GROUP = 20_000
"""Points of a group's mean before thinning."""


class Band(StrEnum):
    """The area around the mean of a group of runs."""

    INTERVAL = "interval"
    """95% interval of the mean by Student's t, over the runs that have a value there."""
    RANGE = "range"
    """From the lowest to the highest run."""


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """Values in the order of x. A group's mean has the limits of its band, which are NaN where one run is left."""

    x: Array
    steps: Array
    """Training step of each value."""
    values: Array
    low: Array | None = None
    high: Array | None = None

    def at(self, kept: NDArray[np.int64] | slice) -> MetricCurve:
        """The points at these positions."""
        low, high = self.low, self.high
        ends = {} if low is None or high is None else {"low": low[kept], "high": high[kept]}
        return replace(self, x=self.x[kept], steps=self.steps[kept], values=self.values[kept], **ends)

    def between(self, low: float | None, high: float | None) -> MetricCurve:
        """The points of a range of x, and one more at either end, so that lines leave the chart at its edges."""
        first = 0 if low is None else max(0, int(self.x.searchsorted(low, "left")) - 1)
        last = len(self.x) if high is None else int(self.x.searchsorted(high, "right")) + 1
        return self.at(slice(first, last))


def smooth(curve: MetricCurve, smoothing: float, extent: float) -> MetricCurve:
    """Return the curve's exponential moving average, weighted by distance in x as in W&B's charts.

    y_i = Σ_j≤i d_ij v_j / Σ_j≤i d_ij with d_ij = w^(1000 (x_i − x_j) / extent) and w = min(√smoothing, 0.999).
    `extent` is the width of the whole chart in x, so that zooming does not change a value.
    """
    if smoothing <= 0 or len(curve.x) < 2 or extent <= 0:
        return curve
    import numpy as np

    weight = min(float(np.sqrt(smoothing)), HIGHEST_WEIGHT)
    decay = np.power(weight, np.diff(curve.x, prepend=curve.x[0]) * (VIEWPORT / extent)).tolist()
    total = mass = 0.0
    averages = []
    for value, keeps in zip(curve.values.tolist(), decay, strict=True):
        total, mass = total * keeps + value, mass * keeps + 1.0
        averages.append(total / mass)
    return replace(curve, values=np.array(averages))


def thin(curve: MetricCurve, low: float, high: float, most: int) -> MetricCurve:
    """Return at most `most` points: the lowest and highest of each bucket of x, so that no spike is lost, and the last.

    Buckets divide the range from `low` to `high` evenly: curves of one chart have the same ones.
    """
    if len(curve.x) <= most:
        return curve
    import numpy as np

    count = max(1, (most - 1) // 2)
    width = (high - low) or 1.0
    bucket = np.clip(((curve.x - low) * (count / width)).astype(int), 0, count - 1)
    order = np.lexsort((curve.values, bucket))
    starts = np.flatnonzero(np.diff(bucket[order], prepend=-1))
    ends = np.append(starts[1:], len(order)) - 1
    kept = np.unique(np.concatenate((order[starts], order[ends], [len(curve.x) - 1])))
    return curve.at(kept)


def mean_curve(members: Sequence[MetricCurve], band: Band) -> MetricCurve:
    """Return the mean of a group of runs with its band, at every x of a member.

    A member is interpolated linearly between its own points and has no value outside of them.
    """
    import numpy as np

    x = np.unique(np.concatenate([each.x for each in members]))
    if len(x) > MOST_OF_GROUP:
        x = x[np.linspace(0, len(x) - 1, MOST_OF_GROUP).astype(int)]
    rows = np.array([np.interp(x, each.x, each.values, left=np.nan, right=np.nan) for each in members])
    steps = np.array([np.interp(x, each.x, each.steps, left=np.nan, right=np.nan) for each in members])
    count = (~np.isnan(rows)).sum(axis=0)
    mean = np.nansum(rows, axis=0) / count
    if band is Band.RANGE:
        low, high = np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)
    else:
        from scipy.special import stdtrit

        freedom = np.maximum(count - 1, 1)
        deviation = np.sqrt(np.nansum((rows - mean) ** 2, axis=0) / freedom)
        reach = stdtrit(freedom, (1 + CONFIDENCE) / 2) * deviation / np.sqrt(count)
        low, high = mean - reach, mean + reach
    low, high = (np.where(count > 1, end, np.nan) for end in (low, high))
    return MetricCurve(x, np.round(np.nansum(steps, axis=0) / count), mean, low, high)
