"""The search space of a sweep: the values that each swept setting may take, and the points of a grid."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, model_validator

from backend.domain.described import Described

Value = JsonValue
Point = dict[str, Value]
"""A value for each swept setting, by its dotted name."""
MAX_PARAMETERS = 20
MAX_VALUES = 100
SIGNIFICANT_DIGITS = 4
"""Sampled numbers are rounded to this precision, so that people can read and repeat them."""

_Bound = Annotated[float | None, Field(allow_inf_nan=False)]


class Parameter(Described):
    """The values that a sweep tries for one training setting: a list, or a range."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    values: list[Value] | None = Field(default=None, min_length=1, max_length=MAX_VALUES)
    """Values to choose from. A list in place of the whole object is the same."""
    low: _Bound = None
    """Lowest value of a range."""
    high: _Bound = None
    """Highest value of a range."""
    log: bool = False
    """Sample the range on a logarithmic scale, as for learning rates."""
    points: int | None = Field(default=None, ge=2, le=MAX_VALUES)
    """Number of evenly spaced values of the range that a grid tries."""

    @model_validator(mode="before")
    @classmethod
    def _list_of_values(cls, given: object) -> object:
        return {"values": given} if isinstance(given, list) else given

    def problem(self, *, is_number: bool, is_whole: bool) -> str:
        """Why no value can be chosen, as a sentence; empty if one can. Limits of the setting are checked elsewhere."""
        if self.values is not None:
            if self.low is not None or self.high is not None or self.log or self.points is not None:
                return "Give a list of values or a range, not both."
            texts = [repr(value) for value in self.values]
            repeated = next((text for text in texts if texts.count(text) > 1), None)
            return f"The value {repeated} is listed twice." if repeated else ""
        if self.low is None or self.high is None:
            return "Give a list of values, or the lowest and the highest value of a range."
        if not is_number:
            return "This setting is not a number, so it has no range. List its values."
        if self.low >= self.high:
            return f"The range is empty: {self.low:g} is not below {self.high:g}."
        if self.log and self.low <= 0:
            return f"A logarithmic range must be above 0; it starts at {self.low:g}."
        if is_whole and not (self.low.is_integer() and self.high.is_integer()):
            return "This setting takes whole numbers. Set whole numbers as the limits of its range."
        return ""


class Axis(Parameter):
    """A parameter whose setting is known."""

    is_whole: bool = False
    """Whether the setting takes whole numbers only."""

    def grid(self) -> list[Value]:
        """The values that a grid tries: the listed ones, or `points` of the range. Empty without either."""
        if self.values is not None:
            return list(self.values)
        if self.points is None:
            return []
        shares = [place / (self.points - 1) for place in range(self.points)]
        return list(dict.fromkeys(self.at(share) for share in shares))

    def ends(self) -> list[Value]:
        """The values to check before a sweep starts: all listed ones, or the ends of the range."""
        return list(self.values) if self.values is not None else [self.at(0.0), self.at(1.0)]

    def at(self, share: float) -> Value:
        """The value at a share of the range, from 0 to 1, on its scale."""
        low, high = self._limits
        if self.log:
            return self.rounded(math.exp(math.log(low) + share * (math.log(high) - math.log(low))))
        return self.rounded(low + share * (high - low))

    def rounded(self, value: float) -> Value:
        low, high = self._limits
        if self.is_whole:
            return int(min(max(round(value), low), high))
        return min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), low), high)

    @property
    def _limits(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            raise ValueError("a list of values has no limits")
        return self.low, self.high


Space = Mapping[str, Axis]
"""Axes by the dotted name of their setting."""


def grid_size(space: Space) -> int:
    return math.prod(len(parameter.grid()) for parameter in space.values())


def grid_points(space: Space) -> Iterator[Point]:
    """Yield all points of the grid."""
    for values in itertools.product(*(parameter.grid() for parameter in space.values())):
        yield dict(zip(space, values, strict=True))


def probe_points(space: Space, count: int) -> Sequence[Point]:
    """Return points to check before a sweep starts, the same ones every time: random combinations of values."""
    draw = random.Random(0)
    return [
        {
            name: draw.choice(each.values) if each.values is not None else each.at(draw.random())
            for name, each in space.items()
        }
        for _ in range(count)
    ]
