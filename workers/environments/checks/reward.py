"""Does the reward distinguish trying from not trying? Perfect play reaches the top, other play stays low."""

from typing import Any

from backend.domain.environments.reward_bounds import floor_of, gold_bounds
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import Estimate, estimate_mean
from workers.environments.checks.base import (
    TOLERANCE,
    Finding,
    by_level,
    check,
    failed,
    figures,
    floor_limit,
    listed,
    passed,
    skipped,
    success_bounds,
    warned,
)
from workers.environments.checks.policies import DEGENERATE
from workers.environments.checks.subject import Subject

NO_FLOOR = "No floor: declare `checks.floor_maximum`, or the `range` of every column."


@check(
    "gold_reaches_bound",
    theme="reward",
    label="Gold reaches the bound",
    sentence="Perfect play earns the highest reward on every task, or the declared bound of its level where "
    "chance decides.",
    advice="Fix the `gold` script or the reward. If chance or an opponent decides, declare `checks.gold_minimum`.",
    needs=("steps_and_ends",),
)
async def gold_reaches_bound(subject: Subject) -> Finding:
    if "gold" not in subject.scripts:
        return skipped("The manifest names no `gold` script: nobody showed that the task can be solved.")
    bounds = gold_bounds(subject.manifest)
    if bounds is None:
        return skipped("No bound: declare `checks.gold_minimum`, or the `range` of every column.")
    rollouts = await subject.rollouts("gold")
    if broken := [rollout for rollout in rollouts if not rollout.is_completed]:
        return failed(f"{len(broken)} of {len(rollouts)} episodes of gold broke: {broken[0].error_message}", broken)
    if subject.manifest.proctor.checks.gold_minimum is None:
        return _every_task(rollouts, bounds)
    return _on_average(rollouts, bounds)


def _every_task(rollouts: list[Rollout], bounds: list[float]) -> Finding:
    """Nothing but the policy decides: the highest reward on each task."""
    worst = sorted(rollouts, key=lambda rollout: rollout.reward or 0.0)
    below = [r for r in worst if (r.reward or 0.0) < bounds[r.task.level] - TOLERANCE]
    if below:
        first = below[0]
        return failed(
            f"Gold misses the highest reward of {bounds[0]:.3f} on {len(below)} of {len(rollouts)} tasks, worst on"
            f" {first.task.key} (level {first.task.level}) with {first.reward:.3f}. Where chance or an opponent"
            " decides, declare `checks.gold_minimum`.",
            below,
            bound=bounds[0],
        )
    return passed(f"Gold gets the highest reward of {bounds[0]:.3f} on all {len(rollouts)} tasks.", worst)


def _on_average(rollouts: list[Rollout], bounds: list[float]) -> Finding:
    """Compare the upper end of each level's interval with its bound: chance or an opponent may decide."""
    levels = by_level(rollouts)
    low = {level: estimate for level, estimate in levels.items() if estimate.high < bounds[level] - TOLERANCE}
    details: dict[str, Any] = {"bounds": bounds, "levels": {level: figures(e) for level, e in levels.items()}}
    told = "Mean and the upper end of its 95 % interval: " + "; ".join(
        f"level {level}: {e.mean:.3f} to {e.high:.3f} (bound {bounds[level]:.3f}, {e.count} tasks)"
        for level, e in levels.items()
    )
    worst = sorted(rollouts, key=lambda rollout: (rollout.task.level not in low, rollout.reward or 0.0))
    if low:
        return failed(f"Gold stays below its bound on level {listed(low)}. {told}.", worst, **details)
    return passed(f"Gold reaches its bound. {told}.", worst, **details)


@check(
    "degenerate_policies",
    theme="reward",
    label="Degenerate policies",
    sentence="Policies that do not try stay within a twentieth of the range above the floor.",
    advice="Remove rewards for form or for lucky guesses, or declare `checks.floor_maximum` if chance reaches more.",
    needs=("steps_and_ends",),
)
async def degenerate_policies(subject: Subject) -> Finding:
    floor, limit = floor_of(subject.manifest), floor_limit(subject.manifest)
    if floor is None or limit is None:
        return skipped(NO_FLOOR)
    means: dict[str, Estimate] = {}
    for policy in DEGENERATE:
        rewards = [rollout.reward or 0.0 for rollout in await subject.completed(policy)]
        if estimate := estimate_mean(rewards):
            means[policy] = estimate
    ranked = sorted(means, key=lambda policy: -means[policy].mean)
    details: dict[str, Any] = {
        "floor": floor,
        "limit": limit,
        "policies": {policy: figures(means[policy]) for policy in ranked},
    }
    told = f"Mean rewards: {', '.join(f'{policy} {means[policy].mean:.3f}' for policy in ranked)}."
    best = sorted(await subject.completed(ranked[0]), key=lambda r: -(r.reward or 0.0)) if ranked else []
    bound = f"the floor of {floor:.3f} and its margin ({limit:.3f})"
    sure = [policy for policy in ranked if means[policy].low > limit + TOLERANCE]
    above = [policy for policy in ranked if means[policy].mean > limit + TOLERANCE]
    if sure:
        return failed(f"Above {bound} without trying: {listed(sure)}. {told}", best, **details)
    if above:
        return warned(f"Perhaps above {bound}: {listed(above)}. {told}", best, **details)
    return passed(f"All {len(ranked)} policies stay at or below {bound}. {told}", best, **details)


@check(
    "untouched_task",
    theme="reward",
    label="Untouched task",
    sentence="No task is solved before the first move.",
    advice="Remove tasks that start solved, and reward changes rather than states that already hold.",
    needs=("steps_and_ends",),
)
async def untouched_task(subject: Subject) -> Finding:
    """Check single tasks, not the average: one task that starts solved is enough to fail."""
    bounds = success_bounds(subject.manifest)
    if bounds is None:
        return skipped(NO_FLOOR)
    rollouts = await subject.completed("empty")
    openings = await subject.openings([rollout.task for rollout in rollouts[: subject.replays(16)]])
    if paid := [opening for opening, _ in openings if any(opening.rewards.values())]:
        return warned(
            f"{len(paid)} of {len(openings)} resets pay already ({paid[0].rewards}); Proctor does not count it."
        )
    gifts = [rollout for rollout in rollouts if (rollout.reward or 0.0) >= bounds[rollout.task.level] - TOLERANCE]
    if gifts:
        first = gifts[0]
        return failed(
            f"Doing nothing succeeds on {len(gifts)} of {len(rollouts)} tasks, e.g. {first.task.key} with"
            f" {first.reward:.3f} (success begins at {bounds[first.task.level]:.3f}).",
            gifts,
        )
    most = max((rollout.reward or 0.0 for rollout in rollouts), default=0.0)
    return passed(
        f"Doing nothing earns at most {most:.3f} on {len(rollouts)} tasks; success begins at {min(bounds):.3f}."
    )
