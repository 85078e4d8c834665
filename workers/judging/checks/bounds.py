"""Where a reward lies: the range, the floor that chance reaches, the bound that perfect play reaches."""

import math
from collections import defaultdict
from collections.abc import Sequence

from backend.domain.manifest import PLATFORM_COLUMNS, Manifest, RewardColumn
from backend.domain.rollouts import Rollout
from backend.domain.statistics import Estimate, estimate_mean

TOLERANCE = 1e-6
FLOOR_MARGIN = 0.05
"""Of the reward's range, that a policy which does not try may lie above the floor."""
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


def floor_limit(manifest: Manifest) -> float | None:
    """The floor and its margin, which needs a range."""
    floor, span = floor_of(manifest), reward_range(manifest)
    return floor if floor is None or span is None else floor + FLOOR_MARGIN * (span[1] - span[0])


def gold_bounds(manifest: Manifest) -> list[float] | None:
    """By level: what is declared, else the highest possible reward."""
    declared, levels = manifest.proctor.checks.gold_minimum, manifest.proctor.tasks.levels
    if isinstance(declared, list):
        return [declared[min(level, len(declared) - 1)] for level in range(levels)] if declared else None
    if declared is None:
        span = reward_range(manifest)
        declared = span[1] if span else None
    return None if declared is None else [declared] * levels


def success_bounds(manifest: Manifest) -> list[float] | None:
    """By level: the reward that counts as success, half of the way from the floor to the gold bound."""
    floor, gold = floor_limit(manifest), gold_bounds(manifest)
    return None if floor is None or gold is None else [(floor + bound) / 2 for bound in gold]


def by_level(rollouts: Sequence[Rollout]) -> dict[int, Estimate]:
    """Mean reward by level, in the order of levels."""
    rewards = defaultdict(list)
    for rollout in rollouts:
        rewards[rollout.task.level].append(rollout.reward or 0.0)
    estimates = {level: estimate_mean(rewards[level]) for level in sorted(rewards)}
    return {level: estimate for level, estimate in estimates.items() if estimate}


def figures(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "count": estimate.count}
