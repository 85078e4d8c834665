"""Does a reward pay for doing the same again? Actions that do not end the episode are repeated turn after turn.

A reward that pays a harmless action each time can be worth more than the right answer. The declared ranges are what a
repetition is held to: without them nobody has said how much is too much.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from backend.domain.environments.prompts import write_reply
from backend.domain.environments.reward_bounds import declared_ranges
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec
from workers.environments.checks.base import Check, Finding, clipped, does_not_apply, failed, passed
from workers.environments.checks.policies import Act, Acts, in_format, recites
from workers.environments.checks.rewards import breach_of
from workers.environments.checks.subject import Subject
from workers.policies.base import EpisodeStart, Policy, Turn

MOST_SHAPES = 12
PER_SHAPE = 2
"""Actions of one shape that are repeated: those that earned the most."""
MOST_TURNS = 64
MOST_SECONDS = 10.0
"""Of a slow environment fewer repetitions are played."""
HARMLESS = ("SELECT 1", "ls", "help", "1")
"""Texts that many an environment takes as an action without consequences."""


@dataclass(frozen=True, slots=True)
class _Repetition:
    """A policy that repeats one action on one task."""

    task: TaskSpec
    policy: Policy
    name: str


async def _stay_in_range(subject: Subject) -> Finding:
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


REPEATED = Check(
    "repeats_in_range",
    "Repeating an action that does not end the episode keeps every column inside its declared range.",
    _stay_in_range,
    needs=("steps_and_ends",),
)
