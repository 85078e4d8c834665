"""The curves of a training run as the alarms see them: everything until now, and how to look at it."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

WINDOW = 10
"""Steps over which the present is averaged."""
BEGINNING = slice(4, 20)
"""Points of a curve that its beginning is made of: steps 5 to 20."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some steps of a curve in a row."""

    first: int
    last: int
    mean: float
    error: float
    """Standard error of the mean, from the spread of the steps."""

    @property
    def steps(self) -> list[int]:
        return [self.first, self.last]


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one curve that are numbers."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def stretch(self, start: int, end: int) -> Stretch:
        values = self.values[start:end]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return Stretch(
            self.steps[start], self.steps[end - 1], statistics.fmean(values), spread / math.sqrt(len(values))
        )


@dataclass(slots=True)
class History:
    """Grows step by step. Steps come in ascending order; those of an examination after those of its step."""

    weights: Mapping[str, float]
    """Of the reward columns."""
    episodes: int
    """Of a step."""
    curves: dict[str, Curve] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)
    """All figures of the newest step, also those that are no numbers."""
    step: int = 0

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        self.step, self.newest = step, dict(figures)
        for name, value in figures.items():
            if math.isfinite(value):
                curve = self.curves.setdefault(name, Curve())
                curve.steps.append(step)
                curve.values.append(value)

    def present(self, name: str, count: int = WINDOW) -> Stretch | None:
        """The last points of a curve; None while there are too few."""
        curve = self.curves.get(name)
        if curve is None or len(curve.values) < count:
            return None
        return curve.stretch(len(curve.values) - count, len(curve.values))

    def before(self, name: str, skip: int, count: int = WINDOW) -> Stretch | None:
        """As many points of a curve before the last `skip` ones."""
        curve = self.curves.get(name)
        end = len(curve.values) - skip if curve else 0
        return curve.stretch(end - count, end) if curve and end >= count else None

    def beginning(self, name: str) -> float | None:
        """The median of the first steps; None until they are over."""
        curve = self.curves.get(name)
        if curve is None or len(curve.values) < BEGINNING.stop + WINDOW:
            return None
        return statistics.median(curve.values[BEGINNING])

    def best(self, name: str, *, sign: float = 1.0, count: int = WINDOW) -> Stretch | None:
        """The points in a row with the highest mean (the lowest with `sign` -1)."""
        curve = self.curves.get(name)
        if curve is None or len(curve.values) < count:
            return None
        sums = np.cumsum([0.0, *curve.values])
        start = int(np.argmax(sign * (sums[count:] - sums[:-count])))
        return curve.stretch(start, start + count)

    def at(self, name: str, stretch: Stretch) -> float | None:
        """Another curve's mean over the same steps."""
        curve = self.curves.get(name)
        pairs = zip(curve.steps, curve.values, strict=True) if curve else ()
        values = [value for step, value in pairs if stretch.first <= step <= stretch.last]
        return statistics.fmean(values) if values else None

    def is_rewarded(self) -> bool:
        """Did the reward rise in the last twenty steps?"""
        now, then = self.present("reward"), self.before("reward", 2 * WINDOW)
        return now is not None and then is not None and now.mean > then.mean + max(now.error, then.error)
