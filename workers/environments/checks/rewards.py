"""Are the reward columns numbers, inside what was declared, and do they add up to the reward?"""

import math

from backend.domain.environments.manifest import PLATFORM_COLUMNS, RewardColumn
from backend.domain.environments.reward_bounds import declared_range, declared_ranges, range_breaches
from backend.domain.rollouts.rollout import Rollout, columns_over_episode, weighted_reward
from workers.environments.checks.base import Check, Finding, failed, listed, passed, skipped, warned
from workers.environments.checks.subject import Subject
from workers.environments.client import Observation

SAMPLES = 12
TOLERANCE = 1e-6
_REWARD_ERRORS = ("reward ", "metadata.rewards ", "the manifest declares ")
"""How the wire and the engine begin when they turn a reward down."""


async def _add_up(subject: Subject) -> Finding:
    """The environment's own scalar against the weighted sum of its columns; and the engine's sum against itself."""
    declared = [column for column in subject.manifest.columns if column.name not in PLATFORM_COLUMNS]
    compared, seen = 0, set[str]()
    reach = TOLERANCE + subject.manifest.proctor.checks.noise * sum(abs(column.weight) for column in declared)
    for rollout in (await subject.completed("random"))[: subject.replays(SAMPLES)]:
        answers = await subject.alone(rollout)
        seen |= {name for answer in answers for name in answer.rewards}
        scalars = [answer.reward for answer in answers if answer.reward is not None]
        if not scalars:
            continue
        compared += 1
        ours, theirs = _episode_reward(declared, answers), math.fsum(scalars)
        if abs(ours - theirs) > reach:
            return failed(
                f"On {rollout.task.key} the environment paid {theirs:.6g}; its columns, weighted, make {ours:.6g}.",
                [rollout],
                task=rollout.task.reset_arguments(),
            )
    if wrong := [r for r in subject.all_rollouts() if not _adds_up(subject, r.columns, r.reward)]:
        return failed(f"{len(wrong)} rollouts whose reward is not the weighted sum of their columns.", wrong)
    if missing := [column.name for column in declared if column.name not in seen]:
        return warned(f"Declared, but never sent: {listed(missing)}. Sent: {listed(sorted(seen))}.")
    if not compared:
        return passed("The environment sends columns only; the reward is their weighted sum.")
    return passed(f"{compared} episodes: the environment's reward is the weighted sum of its columns.")


def _episode_reward(columns: list[RewardColumn], answers: list[Observation]) -> float:
    return weighted_reward(columns, columns_over_episode(columns, [answer.rewards for answer in answers[1:]]))


def _adds_up(subject: Subject, columns: dict[str, float], reward: float | None) -> bool:
    expected = weighted_reward(subject.manifest.columns, columns)
    return reward is not None and abs(expected - reward) <= TOLERANCE


async def _finite(subject: Subject) -> Finding:
    rollouts = await subject.rollouts("random")
    broken = [rollout for rollout in rollouts if (rollout.error_message or "").startswith(_REWARD_ERRORS)]
    if broken:
        return failed(
            f"In {len(broken)} of {len(rollouts)} episodes of random legal play: {broken[0].error_message}.",
            broken,
        )
    rows = [step.rewards for rollout in rollouts for step in rollout.steps if step.action is not None]
    if not rows:
        return skipped("No episode of random legal play came as far as one step.")
    count = sum(len(row) for row in rows)
    return passed(f"{count} values in {len(rows)} steps of {len(rollouts)} episodes: all are finite numbers.")


async def _in_range(subject: Subject) -> Finding:
    """Looks at all episodes that the other checks have played."""
    rollouts = subject.all_rollouts()
    seen = {name: _span(rollouts, name) for name in subject.manifest.column_names}
    told = ", ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in seen.items())
    outside, open_ended = [], []
    for column in subject.manifest.columns:
        span = declared_range(column)
        if span is None:
            open_ended += [column.name] if column.name not in PLATFORM_COLUMNS else []
        elif seen[column.name][0] < span[0] - TOLERANCE or seen[column.name][1] > span[1] + TOLERANCE:
            outside.append(f"{column.name} (declared {span[0]:g} to {span[1]:g})")
    if outside:
        worst = [rollout for rollout in rollouts if breach_of(subject, rollout)]
        evidence = f"Outside of its range: {listed(outside)}. Seen in {len(rollouts)} episodes: {told}."
        return failed(evidence, worst, seen=seen)
    if single := [rollout for rollout in rollouts if breach_of(subject, rollout)]:
        return failed(f"{breach_of(subject, single[0])} Over the episodes: {told}.", single, seen=seen)
    if open_ended:
        return warned(f"No range is declared for {listed(open_ended)}. Seen: {told}.", seen=seen)
    return passed(f"{len(rollouts)} episodes: {told}.", seen=seen)


def breach_of(subject: Subject, rollout: Rollout) -> str:
    """The first value of a rollout outside its declared range, as a sentence; empty when there is none."""
    steps = [step.rewards for step in rollout.steps]
    breach = next(range_breaches(declared_ranges(subject.manifest), rollout.columns, steps), None)
    return breach.sentence if breach else ""


def _span(rollouts: list[Rollout], column: str) -> tuple[float, float]:
    values = [rollout.columns.get(column, 0.0) for rollout in rollouts]
    return min(values, default=0.0), max(values, default=0.0)


FINITE = Check(
    "rewards_finite",
    "Every step of an episode is paid in finite numbers, in the columns that the manifest declares.",
    _finite,
    needs=("starts_and_resets", "agent_fits"),
)
ADD_UP = Check(
    "columns_add_up",
    "The reward is the weighted sum of its columns, for the environment as for Proctor.",
    _add_up,
    needs=("steps_and_ends", "step_deterministic"),
)
IN_RANGE = Check(
    "reward_in_range",
    "Every column stays inside its declared range, in each step and over the episode.",
    _in_range,
    needs=("steps_and_ends",),
)
