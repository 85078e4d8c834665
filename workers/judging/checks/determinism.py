"""Is an episode a function of its task and of the actions, whoever plays beside it?"""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson

from backend.domain.rollouts import Rollout, TaskSpec
from workers.environments.client import EnvSession, Observation
from workers.judging.checks.base import Check, Finding, failed, passed, skipped
from workers.judging.checks.subject import Subject, actions_of
from workers.rollouts.bounds import bounded_observation

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
        async with subject.server.session() as session:
            answers = await subject.replay(session, rollout.task, actions_of(rollout))
        steps += len(answers) - 1
        if difference := _replay_difference(rollout, answers):
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
    """Play in lock step beside each other what was played alone."""
    if subject.server.sessions < 2:
        return passed("The server bears one session at a time: nothing can stand beside it.")
    samples = (await subject.completed("random"))[: min(PARALLEL, subject.server.sessions)]
    barrier = asyncio.Barrier(len(samples))
    replays = await asyncio.gather(*(_beside_others(subject, rollout, barrier) for rollout in samples))
    for rollout, answers in zip(samples, replays, strict=True):
        if difference := _replay_difference(rollout, answers):
            return failed(
                f"{rollout.task.key}, played beside {len(samples) - 1} other sessions, went differently: {difference}.",
                [rollout],
                task=rollout.task.reset_arguments(),
            )
    return passed(f"{len(samples)} sessions at the same time gave what each gave alone.", sessions=len(samples))


async def _beside_others(subject: Subject, rollout: Rollout, barrier: asyncio.Barrier) -> list[Observation]:
    async with subject.server.session() as session:
        await barrier.wait()
        return await subject.replay(session, rollout.task, actions_of(rollout))


async def _opening(subject: Subject, task: TaskSpec) -> dict[str, Any]:
    async with subject.server.session() as session:
        return (await _reset(session, task, subject.timeout)).fields


async def _reset(session: EnvSession, task: TaskSpec, timeout: float) -> Observation:
    return await session.reset(task.reset_arguments(), timeout=timeout)


def _comparable(answer: Observation) -> list[Any]:
    return [answer.fields, answer.rewards, answer.done]


def _replay_difference(rollout: Rollout, answers: Sequence[Observation]) -> str | None:
    """Where a replay leaves the stored episode, in words."""
    steps = [step for step in rollout.steps if step.action is not None and step.note is None]
    if rollout.opening != bounded_observation(answers[0].fields):
        return f"the reset differs in {_difference(rollout.opening, answers[0].fields)}"
    if len(steps) != len(answers) - 1:
        return f"it ended after {len(answers) - 1} steps instead of {len(steps)}"
    for number, (step, answer) in enumerate(zip(steps, answers[1:], strict=True), 1):
        if step.observation != bounded_observation(answer.fields):
            return f"step {number} differs in {_difference(step.observation, answer.fields)}"
        if (step.rewards, step.done) != (answer.rewards, answer.done):
            return f"step {number} paid {answer.rewards} instead of {step.rewards}"
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
