"""What checks hold a reward to beyond its bounds: the margin above the floor, the bar of success, means by level."""

from collections import defaultdict
from collections.abc import Sequence

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of, gold_bounds, reward_range
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import Estimate, estimate_mean

TOLERANCE = 1e-6
FLOOR_MARGIN = 0.05
"""Of the reward's range, that a policy which does not try may lie above the floor."""


def floor_limit(manifest: Manifest) -> float | None:
    """The floor and its margin, which needs a range."""
    floor, span = floor_of(manifest), reward_range(manifest)
    return floor if floor is None or span is None else floor + FLOOR_MARGIN * (span[1] - span[0])


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
