"""Geometry of the server-rendered charts, which `ui/charts.html` draws."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One bar, in the drawing's coordinates."""

    x: float
    y: float
    width: float
    height: float
    value: float
    low: float = 0.0
    """Lower edge of a histogram's bin."""
    high: float = 0.0


@dataclass(frozen=True, slots=True)
class PlottedCurve:
    label: str
    pieces: list[str]
    """SVG `points` of its unbroken stretches."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves with the ends of both axes, in the drawing's coordinates."""

    curves: list[PlottedCurve]
    x: tuple[float, float]
    y: tuple[float, float]


MOST_PLOTTED = 240
"""Points of one drawn curve. A longer one keeps the lowest and highest of each stretch."""


def extent(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the lowest and highest finite value, never equal."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def polyline(values: Sequence[float | None], width: float, height: float, pad: float = 2.0) -> list[str]:
    """Return the pieces of a line as SVG `points`. A missing value breaks the line."""
    low, high = extent(values)
    step = (width - 2 * pad) / max(1, len(values) - 1)
    pieces: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            pieces.append([])
            continue
        y = pad + (high - value) / (high - low) * (height - 2 * pad)
        pieces[-1].append(f"{pad + index * step:.1f},{y:.1f}")
    return [" ".join(piece) for piece in pieces if piece]


def plot(
    steps: Sequence[float],
    curves: Mapping[str, Sequence[float | None]],
    width: float,
    height: float,
    ends: tuple[float | None, float | None] = (None, None),
) -> Plot:
    """Draw curves over their steps. `ends`: values that the vertical axis includes."""
    values = [value for curve in curves.values() for value in curve if value is not None]
    low, high = extent([*values, *ends])
    first, last = extent(steps)
    drawn = []
    for label, curve in curves.items():
        pieces: list[list[str]] = [[]]
        for index in _kept(curve):
            value = curve[index]
            if value is None or not math.isfinite(value):
                pieces.append([])
                continue
            x, y = (steps[index] - first) / (last - first) * width, (high - value) / (high - low) * height
            pieces[-1].append(f"{x:.1f},{y:.1f}")
        # a point alone is drawn as a short line
        drawn.append(PlottedCurve(label, [" ".join(each if len(each) > 1 else each * 2) for each in pieces if each]))
    return Plot(drawn, (first, last), (low, high))


def _kept(curve: Sequence[float | None]) -> list[int]:
    """Return the places to draw: the lowest and the highest of each stretch."""
    known = [index for index, value in enumerate(curve) if value is not None and math.isfinite(value)]
    if len(known) <= MOST_PLOTTED:
        return list(range(len(curve))) if len(curve) <= 2 * MOST_PLOTTED else known
    size = -(-len(known) * 2 // MOST_PLOTTED)
    kept: set[int] = set()
    for start in range(0, len(known), size):
        stretch = known[start : start + size]
        kept |= {min(stretch, key=lambda place: curve[place] or 0), max(stretch, key=lambda place: curve[place] or 0)}
    return sorted(kept | {known[0], known[-1]})


def histogram(values: Sequence[float | None], width: float, height: float, count: int = 20) -> list[ChartBar]:
    """Return a bar for each bin over the range of the values; the tallest fills the height."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return []
    low, high = extent(finite)
    step, cell = (high - low) / count, width / count
    amounts = [0] * count
    for value in finite:
        amounts[min(count - 1, int((value - low) / step))] += 1
    bars, most = [], max(amounts)
    for index, amount in enumerate(amounts):
        tall = amount / most * height
        edges = low + index * step, low + (index + 1) * step
        bars.append(ChartBar(index * cell, height - tall, max(1.0, cell - 1), tall, amount, *edges))
    return bars


def share(value: float | None, low: float, high: float) -> float:
    """Return the position of a value between two others, from 0 to 1."""
    if value is None or high <= low:
        return 0.0
    return min(1.0, max(0.0, (value - low) / (high - low)))
