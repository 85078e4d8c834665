"""Does the reward tell trying from not trying? The gold script must reach the top, degenerate policies stay low."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from backend.domain.manifest import Manifest, RewardColumn
from backend.domain.rollouts import Rollout
from backend.domain.statistics import Estimate, estimate_mean
from workers.judging.checks.base import Check, Finding, failed, listed, passed, skipped, warned
from workers.judging.checks.policies import DEGENERATE
from workers.judging.checks.subject import Subject

GOLD_PER_LEVEL = 64
TOLERANCE = 1e-6
PLATFORM_RANGE = {"format": (0.0, 1.0)}
"""What the platform computes has a range of its own."""


def reward_range(manifest: Manifest) -> tuple[float, float] | None:
    """The lowest and the highest possible reward, where every weighted column has a range."""
    ranges = [(column, declared_range(column)) for column in manifest.columns if column.weight]
    ends = [sorted((column.weight * span[0], column.weight * span[1])) for column, span in ranges if span]
    if len(ends) < len(ranges):
        return None
    return math.fsum(low for low, _ in ends), math.fsum(high for _, high in ends)


def declared_range(column: RewardColumn) -> tuple[float, float] | None:
    return column.range or PLATFORM_RANGE.get(column.name)


async def _gold(subject: Subject) -> Finding:
    manifest = subject.manifest
    if "gold" not in manifest.proctor.scripts:
        return skipped("The manifest names no `gold` script: nobody showed that the task can be solved.")
    bounds = _gold_bounds(manifest)
    if bounds is None:
        return skipped("No bound: declare `checks.gold_minimum`, or the `range` of every column.")
    rollouts = await subject.rollouts("gold", GOLD_PER_LEVEL)
    if broken := [rollout for rollout in rollouts if not rollout.is_completed]:
        return failed(f"{len(broken)} of {len(rollouts)} episodes of gold broke: {broken[0].error_message}", broken)
    levels = by_level(rollouts)
    low = {level: e for level, e in levels.items() if e.high < bounds[level] - TOLERANCE}
    details: dict[str, Any] = {
        "bounds": bounds,
        "levels": {level: _figures(estimate) for level, estimate in levels.items()},
    }
    told = "Mean and the upper end of its 95 % interval: " + "; ".join(
        f"level {level}: {e.mean:.3f} to {e.high:.3f} (bound {bounds[level]:.3f}, {e.count} tasks)"
        for level, e in levels.items()
    )
    worst = sorted(rollouts, key=lambda rollout: (rollout.task.level not in low, rollout.reward or 0.0))
    if low:
        return failed(f"Gold stays below its bound on level {listed(low)}. {told}.", worst, **details)
    return passed(f"Gold reaches its bound. {told}.", worst, **details)


def _gold_bounds(manifest: Manifest) -> list[float] | None:
    """By level: what is declared, else the highest possible reward."""
    declared, levels = manifest.proctor.checks.gold_minimum, manifest.proctor.tasks.levels
    if isinstance(declared, list):
        return [declared[min(level, len(declared) - 1)] for level in range(levels)] if declared else None
    if declared is None:
        span = reward_range(manifest)
        declared = span[1] if span else None
    return None if declared is None else [declared] * levels


async def _degenerate(subject: Subject) -> Finding:
    floor = _floor(subject.manifest)
    if floor is None:
        return skipped("No floor: declare `checks.floor_maximum`, or the `range` of every column.")
    means: dict[str, Estimate] = {}
    for policy in DEGENERATE:
        rollouts = await subject.completed(policy)
        if estimate := estimate_mean([rollout.reward or 0.0 for rollout in rollouts]):
            means[policy] = estimate
    ranked = sorted(means, key=lambda policy: -means[policy].mean)
    details: dict[str, Any] = {"floor": floor, "policies": {policy: _figures(means[policy]) for policy in ranked}}
    told = f"Mean rewards: {', '.join(f'{policy} {means[policy].mean:.3f}' for policy in ranked)}."
    best = sorted(await subject.completed(ranked[0]), key=lambda r: -(r.reward or 0.0)) if ranked else []
    sure = [policy for policy in ranked if means[policy].low > floor + TOLERANCE]
    above = [policy for policy in ranked if means[policy].mean > floor + TOLERANCE]
    if sure:
        return failed(f"Above the floor of {floor:.3f} without trying: {listed(sure)}. {told}", best, **details)
    if above:
        return warned(f"Perhaps above the floor of {floor:.3f}: {listed(above)}. {told}", best, **details)
    return passed(f"All {len(ranked)} policies stay at or below the floor of {floor:.3f}. {told}", best, **details)


def _floor(manifest: Manifest) -> float | None:
    """What is declared, else a quarter of the way from the lowest to the highest possible reward."""
    if manifest.proctor.checks.floor_maximum is not None:
        return manifest.proctor.checks.floor_maximum
    span = reward_range(manifest)
    return None if span is None else span[0] + (span[1] - span[0]) / 4


async def _monotone(subject: Subject) -> Finding:
    """Random play must not find a higher level easier."""
    if subject.levels < 2:
        return passed("There is only one level: nothing to compare.")
    levels = by_level(await subject.completed("random"))
    told = ", ".join(f"level {level} {estimate.mean:.3f}" for level, estimate in levels.items())
    easier = [level for level in levels if level - 1 in levels and levels[level].low > levels[level - 1].high]
    if easier:
        return warned(f"Random legal play finds level {listed(easier)} easier than the one before: {told}.")
    return passed(f"Random legal play finds no level clearly easier than the one before: {told}.")


def by_level(rollouts: Sequence[Rollout]) -> dict[int, Estimate]:
    """Mean reward by level, in the order of levels."""
    rewards = defaultdict(list)
    for rollout in rollouts:
        rewards[rollout.task.level].append(rollout.reward or 0.0)
    estimates = {level: estimate_mean(rewards[level]) for level in sorted(rewards)}
    return {level: estimate for level, estimate in estimates.items() if estimate}


def _figures(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "count": estimate.count}


GOLD = Check(
    "gold_reaches_bound",
    "Perfect play reaches the declared bound on every level (by the upper end of the 95 % interval of its mean).",
    _gold,
    needs=("steps_and_ends",),
)
DEGENERATE_POLICIES = Check(
    "degenerate_policies",
    "Policies that do not try stay at the floor.",
    _degenerate,
    needs=("steps_and_ends",),
)
MONOTONE = Check(
    "levels_monotone", "A higher level is not easier for random legal play.", _monotone, needs=("steps_and_ends",)
)
