"""Geometry of a sweep's parallel coordinates: an axis for each setting and one for the reward, a line for each run."""

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.domain.sweeps.space import Axis, Value
from backend.domain.sweeps.sweep import TrialState
from backend.sweeps.schemas import SweepTrialResponse
from backend.training.setting_texts import write
from backend.web.svg import extent

REWARD = "held-out reward"
LEVELS = 5
"""Shades of the lines, by reward."""
MAX_TICKS = 8
WIDTH, GAPS = 960.0, (150.0, 280.0)
"""Width of the drawing, and the least and the most between two axes."""
HEIGHT = 240.0


@dataclass(frozen=True, slots=True)
class CoordinateAxis:
    """A vertical axis with its ticks, in the drawing's coordinates."""

    name: str
    x: float
    ticks: list[tuple[float, str]]
    """y and label."""


@dataclass(frozen=True, slots=True)
class TrialLine:
    """The line of a run."""

    number: int
    run_id: uuid.UUID | None
    state: TrialState
    level: int
    """1 to `LEVELS`, the best rewards highest."""
    points: str
    title: str


@dataclass(frozen=True, slots=True)
class ParallelCoordinates:
    axes: list[CoordinateAxis]
    lines: list[TrialLine]
    """The best on top."""
    width: float
    height: float


def parallel_coordinates(space: Mapping[str, Axis], trials: Sequence[SweepTrialResponse]) -> ParallelCoordinates:
    """Draw the trials that have a reward."""
    rated = sorted((trial.reward, trial.number, trial) for trial in trials if trial.reward is not None)
    low, high = extent([reward for reward, _, _ in rated])
    gap = max(GAPS[0], min(GAPS[1], WIDTH / max(1, len(space))))
    axes = [CoordinateAxis(name, place * gap, _ticks(axis)) for place, (name, axis) in enumerate(space.items())]
    ends = [(HEIGHT * (1 - share), f"{low + share * (high - low):.3f}") for share in (0, 0.5, 1)]
    axes.append(CoordinateAxis(REWARD, len(space) * gap, ends))
    lines = []
    for reward, number, trial in rated:
        share = (reward - low) / (high - low)
        heights = [*(_height(axis, trial.values.get(name)) for name, axis in space.items()), HEIGHT * (1 - share)]
        values = ", ".join(f"{name} {write(trial.values.get(name))}" for name in space)
        lines.append(
            TrialLine(
                number,
                trial.run_id,
                trial.state,
                min(LEVELS, 1 + int(share * LEVELS)),
                " ".join(f"{axis.x:.1f},{y:.1f}" for axis, y in zip(axes, heights, strict=True)),
                f"Run {number}, {trial.state}: {reward:.3f}. {values}",
            )
        )
    return ParallelCoordinates(axes, lines, len(space) * gap, HEIGHT)


def _height(axis: Axis, value: Value) -> float:
    if axis.values is not None:
        place = axis.values.index(value) if value in axis.values else 0
        return HEIGHT * (1 - (place + 0.5) / len(axis.values))
    if not isinstance(value, int | float) or axis.low is None or axis.high is None:
        return HEIGHT
    low, high, own = (math.log(each) if axis.log else float(each) for each in (axis.low, axis.high, value))
    return HEIGHT * (1 - (own - low) / (high - low))


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    if axis.values is None:
        return [(_height(axis, value), write(value)) for value in dict.fromkeys(map(axis.at, (0.0, 0.5, 1.0)))]
    every = -(-len(axis.values) // MAX_TICKS)
    return [(_height(axis, value), write(value) or "none") for value in axis.values[::every]]
