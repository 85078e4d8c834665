"""Bounds of the reward in a manifest: its range, the floor of chance, the bound of perfect play."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from backend.domain.environments.manifest import PLATFORM_COLUMNS, Manifest
from backend.domain.statistics import TIE, Estimate

PLATFORM_RANGE = {"format": (0.0, 1.0)}
"""Ranges of the columns that Proctor computes."""
ROUNDING = 1e-6
"""Rewards are stored in four bytes. Relative to the end of a range if that is above 1."""


def reward_range(manifest: Manifest) -> tuple[float, float] | None:
    """Return the lowest and highest possible reward; None unless every weighted column has a range."""
    ranges = [(each, each.range or PLATFORM_RANGE.get(each.name)) for each in manifest.columns if each.weight]
    ends = [sorted((column.weight * span[0], column.weight * span[1])) for column, span in ranges if span]
    if len(ends) < len(ranges):
        return None
    return math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)


def floor_of(manifest: Manifest) -> float | None:
    """Return the declared floor, else the lowest possible reward plus the value of the format."""
    if manifest.proctor.checks.floor_maximum is not None:
        return manifest.proctor.checks.floor_maximum
    span = reward_range(manifest)
    if span is None:
        return None
    return span[0] + math.fsum(abs(column.weight) for column in manifest.columns if column.name in PLATFORM_COLUMNS)


def gold_bounds(manifest: Manifest) -> list[float] | None:
    """Return the reward that perfect play must reach by level: as declared, else the highest possible one."""
    declared, levels = manifest.proctor.checks.gold_minimum, manifest.proctor.tasks.levels
    if isinstance(declared, list):
        return [declared[min(level, len(declared) - 1)] for level in range(levels)] if declared else None
    if declared is None:
        span = reward_range(manifest)
        declared = span[1] if span else None
    return None if declared is None else [declared] * levels


@dataclass(frozen=True, slots=True)
class RewardScale:
    """The rewards of chance and of perfect play, between which a reward is normalized."""

    floor: float
    gold: float

    def normalize(self, reward: float) -> float:
        """(reward − floor) / (gold − floor), within [0, 1].

        The normalized score of Mnih et al. 2015, Nature 518, 529, with perfect play in place of a human's.
        """
        return min(1.0, max(0.0, (reward - self.floor) / (self.gold - self.floor)))

    def estimate(self, reward: Estimate | None) -> Estimate | None:
        """Return the normalized score of a mean reward with its interval."""
        if reward is None:
            return None
        mean, low, high = map(self.normalize, (reward.mean, reward.low, reward.high))
        return Estimate(mean, low, high, reward.count)


def reward_scale(
    manifest: Manifest, columns: Sequence[str] | None = None, weights: Sequence[float] | None = None
) -> RewardScale | None:
    """Return the floor and the gold reward; None if one is unknown.

    Where the gold reward depends on the level, it is the mean over levels. `columns` and `weights`: those of a run; if
    they make another sum than the manifest, its bounds do not apply.
    """
    if columns is not None:
        declared = {column.name: column.weight for column in manifest.columns if column.weight}
        summed = {name: weight for name, weight in zip(columns, weights or (), strict=False) if weight}
        if declared.keys() != summed.keys() or any(abs(declared[name] - summed[name]) > TIE for name in summed):
            return None
    floor, gold = floor_of(manifest), gold_bounds(manifest)
    if floor is None or not gold:
        return None
    scale = RewardScale(floor, math.fsum(gold) / len(gold))
    return scale if scale.gold - scale.floor > TIE else None


Ranges = Mapping[str, tuple[float, float]]
"""Lowest and highest value by column."""


@dataclass(frozen=True, slots=True)
class RangeBreach:
    column: str
    value: float
    low: float
    high: float
    step: int | None
    """Index of the step; None: the value over the episode."""

    @property
    def sentence(self) -> str:
        where = "over the episode" if self.step is None else f"in step {self.step + 1}"
        span = f"its declared range {self.low:g} to {self.high:g}"
        return f"Column {self.column} is {self.value:.6g} {where}, outside {span}."


def declared_ranges(manifest: Manifest) -> dict[str, tuple[float, float]]:
    """Return the ranges that the author declares, by column. Proctor's own columns cannot leave theirs."""
    return {column.name: column.range for column in manifest.columns if column.range}


def range_breaches(
    ranges: Ranges, columns: Mapping[str, float], steps: Iterable[Mapping[str, float]]
) -> Iterator[RangeBreach]:
    """Yield breaches over the episode, then those of single steps. A step may always be worth 0."""
    spans = {name: (_span(low, high), _span(min(low, 0.0), max(high, 0.0))) for name, (low, high) in ranges.items()}
    for number, values in chain([(None, columns)], enumerate(steps)):
        for name, of_episode_and_step in spans.items():
            least, most = of_episode_and_step[number is not None]
            if name in values and not least <= values[name] <= most:
                yield RangeBreach(name, values[name], *ranges[name], number)


def _span(low: float, high: float) -> tuple[float, float]:
    return low - ROUNDING * max(1.0, abs(low)), high + ROUNDING * max(1.0, abs(high))
