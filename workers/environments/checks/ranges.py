"""Do reward columns add up and stay in their declared ranges, also when an action is repeated?

A reward for a harmless action in each turn can exceed the reward of the right answer. Declared ranges limit it.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend.domain.environments.manifest import PLATFORM_COLUMNS, RewardColumn
from backend.domain.environments.prompts import write_reply
from backend.domain.environments.reward_bounds import declared_range, declared_ranges, range_breaches
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec, columns_over_episode, weighted_reward
from workers.environments.checks.base import (
    TOLERANCE,
    Finding,
    check,
    clipped,
    does_not_apply,
    failed,
    listed,
    passed,
    warned,
)
from workers.environments.checks.policies import Act, Acts, in_format, recites
from workers.environments.checks.subject import Subject
from workers.environments.client import Observation
from workers.policies.base import EpisodeStart, Policy, Turn

SAMPLES = 12
MOST_SHAPES = 12
PER_SHAPE = 2
"""Number of actions per shape that are repeated, highest reward first."""
MOST_TURNS = 64
MOST_SECONDS = 10.0
"""Time limit; slow environments get fewer repetitions."""
HARMLESS = ("SELECT 1", "ls", "help", "1")
"""Texts that many an environment takes as an action without consequences."""


@check(
    "columns_add_up",
    theme="reward",
    label="Columns add up",
    sentence="The reward is the weighted sum of its columns, in the environment and in Proctor.",
    advice="Return the weighted sum of the columns as the reward, or no reward at all.",
    needs=(
        "steps_and_ends",
        "step_deterministic",
    ),
)
async def columns_add_up(subject: Subject) -> Finding:
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


@check(
    "reward_in_range",
    theme="reward",
    label="Rewards in range",
    sentence="Every column stays in its declared range, in each step and over the episode.",
    advice="Clamp the column or correct the range in the manifest.",
    needs=("steps_and_ends",),
)
async def reward_in_range(subject: Subject) -> Finding:
    """Compare all episodes played by the other checks with the declared ranges."""
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


@dataclass(frozen=True, slots=True)
class _Repetition:
    """A policy that repeats one action on one task."""

    task: TaskSpec
    policy: Policy
    name: str


@check(
    "repeats_in_range",
    theme="reward",
    label="Repeated actions",
    sentence="Repeating an action that does not end the episode keeps every column in its declared range.",
    advice="Reward progress once, for example by remembering what has been rewarded.",
    needs=("steps_and_ends",),
)
async def repeats_in_range(subject: Subject) -> Finding:
    if not declared_ranges(subject.manifest):
        return does_not_apply("No range is declared.")
    if subject.manifest.proctor.episode.max_turns < 2:
        return does_not_apply("An episode has one turn: nothing can be repeated.")
    repetitions = [*_of_seen_actions(subject), *_of_harmless_texts(subject)]
    worst: list[tuple[Rollout, str, str]] = []
    count = longest = 0
    deadline = time.monotonic() + MOST_SECONDS
    for number, each in enumerate(repetitions):
        if subject.should_stop() or (count and time.monotonic() > deadline):
            break
        played = await subject.play("repeated", each.policy, [(each.task, 1)], offset=number)
        if not played or not played[0].is_completed:
            continue
        rollout = played[0]
        count, longest = count + 1, max(longest, len(rollout.steps))
        if breach := breach_of(subject, rollout):
            worst.append((rollout, breach, each.name))
    if worst:
        rollout, breach, name = worst[0]
        size = f"That episode has {len(rollout.steps)} steps and a reward of {rollout.reward:.6g}."
        return failed(
            f"Repeating {name}: {breach} {size}",
            [each for each, _, _ in worst],
            action=name,
            task=rollout.task.reset_arguments(),
        )
    return passed(f"{count} actions repeated, up to {longest} times in an episode: every column stays in its range.")


def _of_seen_actions(subject: Subject) -> Iterator[_Repetition]:
    """Of each shape of action that did not end its episode, those that earned the most: alone, and before the replies
    of the best episode of that task."""
    seen: defaultdict[tuple[str, ...], dict[str, tuple[float, Rollout, Step]]] = defaultdict(dict)
    for rollout in subject.all_rollouts():
        for step in rollout.steps:
            if step.action is not None and not step.done and step.note is None:
                shape = _shape_of(subject, step)
                worth = sum(map(abs, step.rewards.values()))
                if step.reply not in seen[shape] or seen[shape][step.reply][0] < worth:
                    seen[shape][step.reply] = worth, rollout, step
    turns = min(subject.manifest.proctor.episode.max_turns, MOST_TURNS)
    for shape in sorted(seen)[:MOST_SHAPES]:
        best = sorted(seen[shape].values(), key=lambda found: -found[0])[:PER_SHAPE]
        for _, rollout, step in best:
            name = clipped(step.reply.strip())
            yield _Repetition(rollout.task, recites([step.reply] * turns), name)
            ending = _best_replies(subject, rollout.task)
            if ending and len(ending) < turns:
                before = [step.reply] * (turns - len(ending))
                yield _Repetition(rollout.task, recites([*before, *ending]), f"{name} before the best episode")


def _shape_of(subject: Subject, step: Step) -> tuple[str, ...]:
    """Calls of one tool, or actions with the same fields."""
    action, spec = step.action or {}, subject.manifest.proctor.agent.action
    return (str(action.get(spec.field or "")),) if spec.format == "tool" else tuple(sorted(action))


def _best_replies(subject: Subject, task: TaskSpec) -> Sequence[str]:
    played = [rollout for rollout in subject.all_rollouts() if rollout.task == task and rollout.steps]
    best = max(played, key=lambda rollout: rollout.reward or 0.0, default=None)
    return [step.reply for step in best.steps] if best else ()


def _of_harmless_texts(subject: Subject) -> Iterator[_Repetition]:
    task = subject.tasks(2)[0]
    for text in HARMLESS:
        yield _Repetition(task, _writes_everywhere(text), f"{text!r}")


def _writes_everywhere(text: str) -> Policy:
    """The text as the action, turn after turn; with tools in the arguments of the first, then the second, and so on:
    each tool is called in one stretch of the episode."""

    async def begin(start: EpisodeStart) -> Act:
        spec = start.manifest.proctor.agent.action
        turns = min(start.manifest.proctor.episode.max_turns, MOST_TURNS)

        async def act(turn: Turn) -> str:
            if spec.format != "tool" or not turn.tools:
                return in_format(spec, text, turn)
            tool = turn.tools[min(turn.index * len(turn.tools) // turns, len(turn.tools) - 1)]
            texts = {
                name: text
                for name, schema in tool.parameters.get("properties", {}).items()
                if isinstance(schema, dict) and schema.get("type", "string") == "string"
            }
            return write_reply(spec, {spec.field or "name": tool.name, spec.arguments: texts})

        return act

    return Acts(begin)
