"""Do reward columns add up and stay in their declared ranges, also when an action is repeated?

A reward for a harmless action in each turn can exceed the reward of the right answer. Declared ranges limit it.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from backend.domain.environments.manifest import PLATFORM_COLUMNS
from backend.domain.environments.prompts import write_reply
from backend.domain.environments.reward_bounds import PLATFORM_RANGE, declared_ranges, range_breaches
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec, columns_over_episode, weighted_reward
from workers.environments.checks.base import (
    TOLERANCE,
    Check,
    CheckFinding,
    Cost,
    clipped,
    does_not_apply,
    failed,
    listed,
    passed,
    warned,
)
from workers.environments.checks.policies import ReplyPlayer, ReplyPolicy, in_format, recites
from workers.environments.checks.subject import CheckSubject
from workers.policies.base import Policy, Turn

MAX_TURNS = 64


@Check(
    theme="reward",
    label="Columns add up",
    sentence="The reward is the weighted sum of its columns, in the environment and in Proctor.",
    advice="Return the weighted sum of the columns as the reward, or no reward at all.",
    example="""
    weights = {"correct": 1.0, "format": 0.2}  # as in openenv.yaml
    observation.reward = sum(weights[name] * value for name, value in columns.items())
    observation.metadata["rewards"] = columns
    """,
    cost=Cost.REPLAYS,
    needs=("steps_and_ends", "step_deterministic"),
)
async def columns_add_up(subject: CheckSubject) -> CheckFinding:
    """Compare the environment's own scalar over 12 episodes, and all stored rewards, with the weighted sum of columns.

    They must be equal to 1e-6. A declared column that is never sent warns.
    """
    manifest = subject.manifest
    declared = [column for column in manifest.columns if column.name not in PLATFORM_COLUMNS]
    compared, sent = 0, set[str]()
    reach = TOLERANCE + subject.noise * sum(abs(column.weight) for column in declared)
    for rollout in (await subject.completed("random"))[: subject.replay_limit(12)]:
        responses = await subject.stored_replay(rollout)
        sent |= {name for response in responses for name in response.rewards}
        scalars = [response.reward for response in responses if response.reward is not None]
        if not scalars:
            continue
        compared += 1
        columns = columns_over_episode(declared, [response.rewards for response in responses[1:]])
        ours, theirs = weighted_reward(declared, columns), math.fsum(scalars)
        if abs(ours - theirs) > reach:
            return failed(
                f"On {rollout.task.key} the environment returned {theirs:.6g}; the weighted sum of its columns is"
                f" {ours:.6g}.",
                rollout,
            )
    wrong = [
        rollout
        for rollout in subject.all_completed()
        if rollout.reward is None
        or abs(weighted_reward(manifest.columns, rollout.columns) - rollout.reward) > TOLERANCE
    ]
    if wrong:
        return failed(f"{len(wrong)} rollouts whose reward is not the weighted sum of their columns.", wrong)
    if missing := [column.name for column in declared if column.name not in sent]:
        return warned(f"Declared, but never sent: {listed(missing)}. Sent: {listed(sorted(sent))}.")
    if not compared:
        return passed("The environment sends columns only; the reward is their weighted sum.")
    return passed(f"{compared} episodes: the environment's reward is the weighted sum of its columns.")


@Check(
    theme="reward",
    label="Rewards in range",
    sentence="Every column stays in its declared range, in each step and over the episode.",
    advice="Clamp the column or correct the range in the manifest.",
    example="""
    @column
    def progress(self) -> float:
        return min(1.0, max(0.0, self._done / self._total))  # range: [0, 1]
    """,
    cost=Cost.STORED,
)
async def reward_in_range(subject: CheckSubject) -> CheckFinding:
    """Compare all episodes played so far with the declared ranges, exactly. A column without a declared range warns."""
    rollouts = subject.all_completed()
    seen, outside, open_ended = {}, [], []
    for column in subject.manifest.columns:
        values = [rollout.columns.get(column.name, 0.0) for rollout in rollouts]
        low, high = seen[column.name] = min(values, default=0.0), max(values, default=0.0)
        span = column.range or PLATFORM_RANGE.get(column.name)
        if span is None:
            open_ended += [column.name] if column.name not in PLATFORM_COLUMNS else []
        elif low < span[0] - TOLERANCE or high > span[1] + TOLERANCE:
            outside.append(f"{column.name} (declared {span[0]:g} to {span[1]:g})")
    summary = ", ".join(f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in seen.items())
    worst = [rollout for rollout in rollouts if breach_of(subject, rollout)]
    if outside:
        evidence = f"Outside its range: {listed(outside)}. Seen in {len(rollouts)} episodes: {summary}."
        return failed(evidence, worst, seen=seen)
    if worst:
        return failed(f"{breach_of(subject, worst[0])} Over the episodes: {summary}.", worst, seen=seen)
    if open_ended:
        return warned(f"No range is declared for {listed(open_ended)}. Seen: {summary}.", seen=seen)
    return passed(f"{len(rollouts)} episodes: {summary}.", seen=seen)


def breach_of(subject: CheckSubject, rollout: Rollout) -> str:
    """Describe the first value of a rollout outside its declared range; empty if there is none."""
    steps = [step.rewards for step in rollout.steps]
    breach = next(range_breaches(declared_ranges(subject.manifest), rollout.columns, steps), None)
    return breach.sentence if breach else ""


@Check(
    theme="reward",
    label="Repeated actions",
    sentence="Repeating an action that does not end the episode keeps every column in its declared range.",
    advice="Reward progress once, for example by remembering what has been rewarded.",
    example="""
    @column
    def visited(self) -> float:
        is_new = self._place not in self._rewarded
        self._rewarded.add(self._place)
        return 1.0 / PLACES if is_new else 0.0
    """,
    cost=Cost.EPISODES,
)
async def repeats_in_range(subject: CheckSubject) -> CheckFinding:
    """Repeat the two actions with the highest reward of each shape seen so far (each tool, each set of fields).

    They are repeated up to 64 times, alone and before the replies of the best episode of that task, within 10 seconds.
    A few harmless texts such as `ls` are repeated too. Every column must stay in its declared range.
    """
    if not declared_ranges(subject.manifest):
        return does_not_apply("No range is declared.")
    if subject.manifest.proctor.episode.max_turns < 2:
        return does_not_apply("An episode has one turn: nothing can be repeated.")
    repeated = await played_repetitions(subject)
    worst = [(each.rollout, breach, each.name) for each in repeated if (breach := breach_of(subject, each.rollout))]
    count, longest = len(repeated), max((len(each.rollout.steps) for each in repeated), default=0)
    if worst:
        rollout, breach, name = worst[0]
        size = f"That episode has {len(rollout.steps)} steps and a reward of {rollout.reward:.6g}."
        return failed(
            f"Repeating {name}: {breach} {size}",
            [rollout for rollout, _, _ in worst],
            action=name,
            task=rollout.task.reset_arguments(),
        )
    return passed(f"{count} actions repeated, up to {longest} times in an episode: every column stays in its range.")


@dataclass(frozen=True, slots=True)
class RepeatedAction:
    """An episode in which one action was repeated."""

    rollout: Rollout
    name: str
    is_before_best: bool
    """The replies of the best episode of that task follow."""


async def played_repetitions(subject: CheckSubject) -> list[RepeatedAction]:
    """Play the repetitions once for all checks; returns completed episodes. Slow environments get fewer."""
    if subject.repeated is None:
        subject.repeated = []
        deadline = time.monotonic() + 10
        for number, (task, policy, name, is_before_best) in enumerate(list(_repetitions(subject))):
            if subject.should_stop() or (subject.repeated and time.monotonic() > deadline):
                break
            for rollout in await subject.play("repeated", policy, [(task, 1)], offset=number):
                if rollout.is_completed:
                    subject.repeated.append(RepeatedAction(rollout, name, is_before_best))
    return [each for each in subject.repeated if isinstance(each, RepeatedAction)]


def _repetitions(subject: CheckSubject) -> Iterator[tuple[TaskSpec, Policy, str, bool]]:
    """Yield tasks, policies that repeat an action on them, a name for the action, and if the best episode follows."""
    spec = subject.manifest.proctor.agent.action
    turns = min(subject.manifest.proctor.episode.max_turns, MAX_TURNS)
    seen: defaultdict[tuple[str, ...], dict[str, tuple[float, Rollout, Step]]] = defaultdict(dict)
    best_of_task: dict[str, Rollout] = {}
    for rollout in subject.all_completed():
        best = best_of_task.get(repr(rollout.task))
        if rollout.steps and (best is None or (rollout.reward or 0.0) > (best.reward or 0.0)):
            best_of_task[repr(rollout.task)] = rollout
        for step in rollout.steps:
            if step.action is not None and not step.done and step.note is None:
                is_call = spec.format == "tool"
                shape = (str(step.action.get(spec.field or "") or ""),) if is_call else tuple(sorted(step.action))
                worth = sum(map(abs, step.rewards.values()))
                if step.reply not in seen[shape] or seen[shape][step.reply][0] < worth:
                    seen[shape][step.reply] = worth, rollout, step
    for shape in sorted(seen)[:12]:
        for _, rollout, step in sorted(seen[shape].values(), key=lambda each: -each[0])[:2]:
            name = clipped(step.reply.strip())
            yield rollout.task, recites([step.reply] * turns), name, False
            ending = [step.reply for step in best_of_task[repr(rollout.task)].steps]
            if len(ending) < turns:
                before = [step.reply] * (turns - len(ending))
                yield rollout.task, recites([*before, *ending]), f"{name} before the best episode", True
    task = subject.tasks(2)[0]
    for text in ("SELECT 1", "ls", "help", "1"):  # many environments accept these as actions without consequences
        yield task, ReplyPolicy(partial(_write_everywhere, text)), f"{text!r}", False


def _write_everywhere(text: str, player: ReplyPlayer, turn: Turn) -> str:
    """Write the text as the action, turn after turn. With tools, call each of them in one stretch of the episode."""
    spec, turns = player.spec, min(player.max_turns, MAX_TURNS)
    if spec.format != "tool" or not turn.tools:
        return in_format(spec, text, turn)
    tool = turn.tools[min(turn.index * len(turn.tools) // turns, len(turn.tools) - 1)]
    texts = {
        name: text
        for name, schema in tool.parameters.get("properties", {}).items()
        if isinstance(schema, dict) and schema.get("type", "string") == "string"
    }
    return write_reply(spec, {spec.field or "name": tool.name, spec.arguments: texts})
