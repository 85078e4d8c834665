"""Is an episode a function of its task and of the actions, in this process and in another?"""

import re
from collections.abc import Sequence
from typing import Any

import orjson

from backend.domain.rollouts.rollout import Rollout
from workers.environments.checks.base import Check, Finding, clipped, does_not_apply, failed, passed, warned
from workers.environments.checks.subject import Subject, actions_of
from workers.environments.client import EnvServer, Observation

RESETS = 16
SAMPLES = 16
TWIN_SECONDS = 90.0
"""How long to wait for a second server: a place for it, and a warm interpreter with other string hashes."""
HASHES = "whose strings hash differently"
ROUNDING = 1e-9
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


async def _resets_alike(subject: Subject) -> Finding:
    tasks = subject.tasks(RESETS // min(subject.levels, 4))[:RESETS]
    for task in tasks:
        async with subject.server.session() as session:
            first = await subject.open(session, task)
        async with subject.server.session() as session:
            second = await subject.open(session, task)
        if difference := difference_of([first], [second], subject.manifest.proctor.checks.noise):
            return failed(
                f"Two resets of {task.key} (seed {task.seed}): {difference}.",
                await _shown(subject, task.key),
                task=task.reset_arguments(),
            )
    return passed(f"{len(tasks)} tasks, each reset twice: equal observations.", tasks=len(tasks))


async def _shown(subject: Subject, key: str) -> list[Rollout]:
    return [rollout for rollout in await subject.rollouts("random") if rollout.task.key == key]


async def _steps_alike(subject: Subject) -> Finding:
    """Twice in one process, then in another: what a process keeps to itself must not count.

    The other process has another seed of Python's string hashes, so that the order of a set of strings shows too.
    """
    samples = (await subject.completed("random"))[: subject.replays(SAMPLES)]
    if finding := await _again(subject, samples, subject.server, "once more in the same process"):
        return finding
    async with subject.other_process(TWIN_SECONDS) as other:
        if other is None:
            seen = f"{len(samples)} episodes played twice in one process: equal."
            return warned(f"{seen} There was no room for a second process to compare with.")
        if finding := await _again(subject, samples, other, f"in another process, {HASHES}"):
            return finding
    steps = sum([len(await subject.alone(rollout)) - 1 for rollout in samples])
    return passed(
        f"{len(samples)} episodes with {steps} steps, played twice in one process and once in another with other"
        " string hashes: equal observations, rewards, ends."
    )


async def _again(subject: Subject, samples: Sequence[Rollout], server: EnvServer, where: str) -> Finding | None:
    for rollout in samples:
        first = await subject.alone(rollout)
        async with server.session() as session:
            second = await subject.replay(session, rollout.task, actions_of(rollout))
        if difference := difference_of(first, second, subject.manifest.proctor.checks.noise):
            return failed(
                f"The same actions on {rollout.task.key} (seed {rollout.task.seed}), {where}: {difference}.",
                [rollout],
                task=rollout.task.reset_arguments(),
            )
    return None


async def _seeds_differ(subject: Subject) -> Finding:
    """Different openings, or different answers to the same actions."""
    samples = await subject.completed("random")
    actions = max((actions_of(rollout) for rollout in samples), key=len, default=[])
    tasks = [rollout.task for rollout in samples if rollout.task.level == samples[0].task.level][:SAMPLES]
    if len(tasks) < 2:
        return does_not_apply("There is only one held-out task of a level: no seeds to compare.")
    signatures = set()
    for task in tasks:
        async with subject.server.session() as session:
            answers = await subject.replay(session, task, actions[:6])
        told = [[answer.fields, answer.rewards, answer.done] for answer in answers]
        signatures.add(orjson.dumps(told, option=orjson.OPT_SORT_KEYS))
    if len(signatures) == 1:
        return failed(
            f"{len(tasks)} seeds of one level gave one and the same episode: the seed has no effect.", samples
        )
    return passed(f"{len(tasks)} seeds of one level gave {len(signatures)} different episodes to the same actions.")


def difference_of(first: Sequence[Observation], second: Sequence[Observation], noise: float = 0.0) -> str | None:
    """Where the second episode leaves the first, in words. With noise, numbers in observations may differ."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        where = f"step {number}" if number else "the reset"
        if (one.fields != other.fields) and (not noise or _masked(one.fields) != _masked(other.fields)):
            return f"{where} differs in {_fields(one.fields, other.fields)}"
        if not same_rewards(one, other, noise):
            return f"{where} paid {other.rewards or other.reward} instead of {one.rewards or one.reward}"
        if one.done != other.done:
            return f"{where} {'ended' if other.done else 'did not end'} it"
    return None


def same_rewards(one: Observation, other: Observation, noise: float) -> bool:
    if one.rewards.keys() != other.rewards.keys() or (one.reward is None) != (other.reward is None):
        return False
    reach = noise + ROUNDING
    if any(abs(value - other.rewards[name]) > reach for name, value in one.rewards.items()):
        return False
    # the scalar is a weighted sum: with noise it may lie further apart than a column
    return bool(noise) or abs((one.reward or 0.0) - (other.reward or 0.0)) <= reach


def _masked(fields: dict[str, Any]) -> str:
    return _NUMBER.sub("#", orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode())


def _fields(first: dict[str, Any], second: dict[str, Any]) -> str:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return ", ".join(f"`{name}` ({clipped(first.get(name))} / {clipped(second.get(name))})" for name in names[:3])


RESETS_ALIKE = Check(
    "reset_deterministic",
    "The same task begins in the same way every time.",
    _resets_alike,
    needs=("starts_and_resets",),
)
STEPS_ALIKE = Check(
    "step_deterministic",
    "The same actions on the same task get the same answers and rewards, in another process too.",
    _steps_alike,
    needs=("steps_and_ends",),
)
SEEDS_DIFFER = Check(
    "seeds_differ", "Different seeds give different episodes.", _seeds_differ, needs=("steps_and_ends",)
)
