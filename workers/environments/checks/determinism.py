"""Is an episode a function of its task and actions: again, in another process, and next to other sessions?"""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Any

import orjson

from backend.domain.environments.manifest import PLATFORM_COLUMNS
from backend.domain.errors import RolloutError
from backend.domain.rollouts.rollout import Rollout, columns_over_episode
from workers.environments.checks.base import Finding, check, clipped, does_not_apply, failed, listed, passed, warned
from workers.environments.checks.subject import Subject, actions_of
from workers.environments.client import EnvServer, Observation

RESETS = 16
SAMPLES = 16
TWIN_SECONDS = 90.0
"""How long to wait for a second server: a place for it, and a warm interpreter with other string hashes."""
HASHES = "whose strings hash differently"
ROUNDING = 1e-9
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
PARALLEL = 64
GROUPS = 4
MEMBERS = 8
COLUMN_ROUNDING = 1e-6


@check(
    "reset_deterministic",
    theme="determinism",
    label="Deterministic reset",
    sentence="The same task starts the same way every time.",
    advice="Derive everything random in `reset` from the task's seed, and never from the clock or global state.",
    needs=("starts_and_resets",),
)
async def reset_deterministic(subject: Subject) -> Finding:
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


@check(
    "step_deterministic",
    theme="determinism",
    label="Deterministic steps",
    sentence="The same actions on the same task get the same answers and rewards, also in another process.",
    advice="Use one random generator per episode, and sort sets before you iterate over them.",
    needs=("steps_and_ends",),
)
async def step_deterministic(subject: Subject) -> Finding:
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


@check(
    "seeds_differ",
    theme="determinism",
    label="Seeds differ",
    sentence="Different seeds give different episodes.",
    advice="Use the task's seed to generate the task.",
    needs=("steps_and_ends",),
)
async def seeds_differ(subject: Subject) -> Finding:
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
    """Describe where the second episode diverges from the first. With noise, numbers in observations may differ."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        where = f"step {number}" if number else "the reset"
        if (one.fields != other.fields) and (not noise or _masked(one.fields) != _masked(other.fields)):
            return f"{where} differs in {_differing_fields(one.fields, other.fields)}"
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


def _differing_fields(first: dict[str, Any], second: dict[str, Any]) -> str:
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return ", ".join(f"`{name}` ({clipped(first.get(name))} / {clipped(second.get(name))})" for name in names[:3])


@check(
    "group_noise",
    theme="determinism",
    label="No noise in groups",
    sentence="The same actions on the same task earn the same columns in eight sessions.",
    advice="Remove randomness and shared state from the reward, or declare `checks.noise` if it cannot be removed.",
    needs=("steps_and_ends",),
)
async def group_noise(subject: Subject) -> Finding:
    """A group's advantages are differences of rewards: what is not the policy's doing must not show in them."""
    noise = subject.manifest.proctor.checks.noise
    samples = _varied(await subject.completed("random"))[: subject.replays(GROUPS * MEMBERS) // MEMBERS or 1]
    widest = 0.0
    for rollout in samples:
        rewards = [await _columns_of(subject, rollout) for _ in range(MEMBERS)]
        for name in rewards[0]:
            values = [row.get(name, math.nan) for row in rewards]
            spread = max(values) - min(values)
            widest = max(widest, spread)
            if not spread <= noise + COLUMN_ROUNDING:
                shown = ", ".join(f"{value:.4g}" for value in values)
                return failed(
                    f"The same actions on {rollout.task.key} in {MEMBERS} sessions earned `{name}`: {shown}.",
                    [rollout],
                    task=rollout.task.reset_arguments(),
                    column=name,
                    values=values,
                )
    return passed(
        f"{len(samples)} tasks, the same actions in {MEMBERS} sessions each: the widest spread of a column is"
        f" {widest:.2g} (allowed {noise:g}).",
        spread=widest,
    )


def _varied(rollouts: list[Rollout]) -> list[Rollout]:
    """The longest, the best and the worst first."""
    chosen = [
        max(rollouts, key=lambda rollout: len(rollout.steps)),
        max(rollouts, key=lambda rollout: rollout.reward or 0.0),
        min(rollouts, key=lambda rollout: rollout.reward or 0.0),
        *rollouts,
    ]
    return list({id(rollout): rollout for rollout in chosen}.values())[:GROUPS]


async def _columns_of(subject: Subject, rollout: Rollout) -> dict[str, float]:
    async with subject.server.session() as session:
        answers = await subject.replay(session, rollout.task, actions_of(rollout))
    return columns_over_episode(subject.manifest.columns, [answer.rewards for answer in answers[1:]])


@check(
    "sessions_isolated",
    theme="determinism",
    label="Isolated sessions",
    sentence="64 concurrent episodes go the same way as each does alone.",
    advice="Keep the state of an episode in the environment object, not in the module, the class or a shared file.",
    needs=(
        "steps_and_ends",
        "step_deterministic",
    ),
)
async def sessions_isolated(subject: Subject) -> Finding:
    """Compare episodes played in lockstep with the same episodes played alone."""
    if subject.server.sessions < 2:
        return does_not_apply("The server bears one session at a time: nothing can stand beside it.")
    count = min(PARALLEL, subject.server.sessions)
    different = (await subject.completed("random"))[: subject.replays(count)]
    samples = [different[number % len(different)] for number in range(count)]
    serial = [await subject.alone(rollout) for rollout in samples]
    barrier = asyncio.Barrier(len(samples))
    parallel = await asyncio.gather(*(_beside_others(subject, rollout, barrier) for rollout in samples))
    for rollout, alone, beside in zip(samples, serial, parallel, strict=True):
        if difference := difference_of(alone, beside, subject.manifest.proctor.checks.noise):
            return failed(
                f"{rollout.task.key}, played beside {len(samples) - 1} other sessions, went differently: {difference}.",
                [rollout],
                task=rollout.task.reset_arguments(),
            )
    return passed(f"{len(samples)} sessions at the same time gave what each gave alone.", sessions=len(samples))


async def _beside_others(subject: Subject, rollout: Rollout, barrier: asyncio.Barrier) -> list[Observation]:
    """Reset all sessions before any of them steps."""
    try:
        async with subject.server.session() as session:
            answers = [await subject.open(session, rollout.task)]
            await barrier.wait()
            return answers + await subject.go_on(session, answers[-1], actions_of(rollout))
    except RolloutError:
        await barrier.abort()  # or the others would wait for ever
        raise


@check(
    "rescore_equal",
    theme="determinism",
    label="Reproducible scores",
    sentence="A stored episode gets the same score when it is replayed.",
    advice="Make the reward a function of the task and the actions only.",
    needs=(
        "steps_and_ends",
        "step_deterministic",
    ),
)
async def rescore_equal(subject: Subject) -> Finding:
    """Compare stored rewards of concurrent episodes with the rewards of a replay."""
    noise = subject.manifest.proctor.checks.noise + COLUMN_ROUNDING
    samples = (await subject.completed("random"))[: subject.replays(PARALLEL)]
    names = [name for name in subject.manifest.column_names if name not in PLATFORM_COLUMNS]
    different = []
    for rollout in samples:
        rows = [answer.rewards for answer in (await subject.alone(rollout))[1:]]
        now = columns_over_episode(subject.manifest.columns, rows)
        if changed := [name for name in names if abs(now[name] - rollout.columns.get(name, 0.0)) > noise]:
            different.append((rollout, changed[0], now[changed[0]]))
    if different:
        rollout, name, value = different[0]
        return failed(
            f"{len(different)} of {len(samples)} stored episodes are scored differently by a replay of their actions:"
            f" {rollout.task.key} was stored with `{name}` {rollout.columns.get(name, 0.0):.6g} and now earns"
            f" {value:.6g}.",
            [rollout for rollout, _, _ in different],
        )
    return passed(f"{len(samples)} stored episodes, replayed: all have the same {listed(names, 8)} again.")
