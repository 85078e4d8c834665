"""Where a reward may lie by a version's manifest: its range, the floor of chance, the bound of perfect play."""

import math

from backend.domain.manifest import PLATFORM_COLUMNS, Manifest, RewardColumn

PLATFORM_RANGE = {"format": (0.0, 1.0)}
"""What the platform computes has a range of its own."""


def declared_range(column: RewardColumn) -> tuple[float, float] | None:
    return column.range or PLATFORM_RANGE.get(column.name)


def reward_range(manifest: Manifest) -> tuple[float, float] | None:
    """The lowest and the highest possible reward, where every weighted column has a range."""
    ranges = [(column, declared_range(column)) for column in manifest.columns if column.weight]
    ends = [sorted((column.weight * span[0], column.weight * span[1])) for column, span in ranges if span]
    if len(ends) < len(ranges):
        return None
    return math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)


def floor_of(manifest: Manifest) -> float | None:
    """What is declared, else the lowest possible reward and what the format alone is worth."""
    if manifest.proctor.checks.floor_maximum is not None:
        return manifest.proctor.checks.floor_maximum
    span = reward_range(manifest)
    if span is None:
        return None
    return span[0] + math.fsum(abs(column.weight) for column in manifest.columns if column.name in PLATFORM_COLUMNS)


def gold_bounds(manifest: Manifest) -> list[float] | None:
    """By level: what is declared, else the highest possible reward."""
    declared, levels = manifest.proctor.checks.gold_minimum, manifest.proctor.tasks.levels
    if isinstance(declared, list):
        return [declared[min(level, len(declared) - 1)] for level in range(levels)] if declared else None
    if declared is None:
        span = reward_range(manifest)
        declared = span[1] if span else None
    return None if declared is None else [declared] * levels
