"""Is an episode a function of its task and of the actions, whoever plays beside it?"""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from backend.domain.rollouts import Rollout, TaskSpec
from workers.environments.client import Observation
from workers.judging.checks.base import Check, Finding, failed, passed, skipped
from workers.judging.checks.subject import Subject, actions_of

SAMPLES = 16
PARALLEL = 8


async def _resets_alike(subject: Subject) -> Finding:
    tasks = subject.tasks(SAMPLES // min(subject.levels, 4))[:SAMPLES]
    for task in tasks:
        first, second = [await _opening(subject, task) for _ in range(2)]
        if first != second:
            return failed(
                f"Two resets of {task.key} (seed {task.seed}) differ in {_difference(first, second)}.",
                task=task.reset_arguments(),
            )
    return passed(f"{len(tasks)} tasks, each reset twice: equal observations.", tasks=len(tasks))


async def _steps_alike(subject: Subject) -> Finding:
    samples = (await subject.completed("random"))[:SAMPLES]
    steps = 0
    for rollout in samples:
        first, second = [await _alone(subject, rollout) for _ in range(2)]
        steps += len(first) - 1
        if difference := _difference_of(first, second):
            return failed(
                f"The same actions on {rollout.task.key} (seed {rollout.task.seed}) gave something else: {difference}.",
                [rollout],
                task=rollout.task.reset_arguments(),
            )
    return passed(f"{len(samples)} episodes with {steps} steps played twice: equal observations, rewards, ends.")


async def _seeds_differ(subject: Subject) -> Finding:
    """Different openings, or different answers to the same actions."""
    samples = await subject.completed("random")
    actions = max((actions_of(rollout) for rollout in samples), key=len, default=[])
    tasks = [rollout.task for rollout in samples if rollout.task.level == samples[0].task.level][:SAMPLES]
    if len(tasks) < 2:
        return skipped("There is only one held-out task of a level: no seeds to compare.")
    signatures = set()
    for task in tasks:
        async with subject.server.session() as session:
            answers = await subject.replay(session, task, actions[:6])
        signatures.add(orjson.dumps([_comparable(answer) for answer in answers], option=orjson.OPT_SORT_KEYS))
    if len(signatures) == 1:
        return failed(f"{len(tasks)} seeds of one level gave one and the same episode: the seed has no effect.")
    return passed(f"{len(tasks)} seeds of one level gave {len(signatures)} different episodes to the same actions.")


async def _sessions_isolated(subject: Subject) -> Finding:
    """Play in lock step beside each other what is played alone."""
    if subject.server.sessions < 2:
        return passed("The server bears one session at a time: nothing can stand beside it.")
    samples = (await subject.completed("random"))[: min(PARALLEL, subject.server.sessions)]
    serial = [await _alone(subject, rollout) for rollout in samples]
    barrier = asyncio.Barrier(len(samples))
    parallel = await asyncio.gather(*(_beside_others(subject, rollout, barrier) for rollout in samples))
    for rollout, alone, beside in zip(samples, serial, parallel, strict=True):
        if difference := _difference_of(alone, beside):
            return failed(
                f"{rollout.task.key}, played beside {len(samples) - 1} other sessions, went differently: {difference}.",
                [rollout],
                task=rollout.task.reset_arguments(),
            )
    return passed(f"{len(samples)} sessions at the same time gave what each gave alone.", sessions=len(samples))


async def _alone(subject: Subject, rollout: Rollout) -> list[Observation]:
    async with subject.server.session() as session:
        return await subject.replay(session, rollout.task, actions_of(rollout))


async def _beside_others(subject: Subject, rollout: Rollout, barrier: asyncio.Barrier) -> list[Observation]:
    """All reset before anybody moves."""
    async with subject.server.session() as session:
        answers = [await session.reset(rollout.task.reset_arguments(), timeout=subject.timeout)]
        await barrier.wait()
        return answers + await subject.go_on(session, answers[-1], actions_of(rollout))


async def _opening(subject: Subject, task: TaskSpec) -> dict[str, Any]:
    async with subject.server.session() as session:
        return (await session.reset(task.reset_arguments(), timeout=subject.timeout)).fields


def _comparable(answer: Observation) -> list[Any]:
    return [answer.fields, answer.rewards, answer.done]


def _difference_of(first: Sequence[Observation], second: Sequence[Observation]) -> str | None:
    """Where the second episode leaves the first, in words."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        where = f"step {number}" if number else "the reset"
        if one.fields != other.fields:
            return f"{where} differs in {_difference(one.fields, other.fields)}"
        if (one.rewards, one.reward) != (other.rewards, other.reward):
            return f"{where} paid {other.rewards} instead of {one.rewards}"
        if one.done != other.done:
            return f"{where} {'ended' if other.done else 'did not end'} it"
    return None


def _difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return ", ".join(f"`{name}` ({first.get(name)!r:.60} / {second.get(name)!r:.60})" for name in names[:3])


RESETS_ALIKE = Check(
    "reset_deterministic",
    "The same task begins in the same way every time.",
    _resets_alike,
    needs=("starts_and_resets",),
)
STEPS_ALIKE = Check(
    "step_deterministic",
    "The same actions on the same task get the same answers and rewards.",
    _steps_alike,
    needs=("steps_and_ends",),
)
SEEDS_DIFFER = Check(
    "seeds_differ", "Different seeds give different episodes.", _seeds_differ, needs=("steps_and_ends",)
)
ISOLATED = Check(
    "sessions_isolated",
    "Episodes beside each other do not disturb one another.",
    _sessions_isolated,
    needs=("steps_and_ends", "step_deterministic"),
)
