"""Do episodes on one server leave one another alone: in a group, side by side, one after the other?"""

import asyncio
import math

from backend.domain.environments.manifest import PLATFORM_COLUMNS
from backend.domain.errors import RolloutError
from backend.domain.rollouts.rollout import Rollout, columns_over_episode
from workers.environments.checks.base import Check, Finding, does_not_apply, failed, listed, passed
from workers.environments.checks.determinism import difference_of
from workers.environments.checks.subject import Subject, actions_of
from workers.environments.client import Observation

PARALLEL = 64
GROUPS = 4
MEMBERS = 8
ROUNDING = 1e-6


async def _isolated(subject: Subject) -> Finding:
    """Play in lock step beside each other what is played alone."""
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
    """All reset before anybody moves."""
    try:
        async with subject.server.session() as session:
            answers = [await subject.open(session, rollout.task)]
            await barrier.wait()
            return answers + await subject.go_on(session, answers[-1], actions_of(rollout))
    except RolloutError:
        await barrier.abort()  # or the others would wait for ever
        raise


async def _group_noise(subject: Subject) -> Finding:
    """A group's advantages are differences of rewards: what is not the policy's doing must not show in them."""
    noise = subject.manifest.proctor.checks.noise
    samples = _varied(await subject.completed("random"))[: subject.replays(GROUPS * MEMBERS) // MEMBERS or 1]
    widest = 0.0
    for rollout in samples:
        rewards = [await _paid(subject, rollout) for _ in range(MEMBERS)]
        for name in rewards[0]:
            values = [row.get(name, math.nan) for row in rewards]
            spread = max(values) - min(values)
            widest = max(widest, spread)
            if not spread <= noise + ROUNDING:
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


async def _paid(subject: Subject, rollout: Rollout) -> dict[str, float]:
    async with subject.server.session() as session:
        answers = await subject.replay(session, rollout.task, actions_of(rollout))
    return columns_over_episode(subject.manifest.columns, [answer.rewards for answer in answers[1:]])


async def _rescored(subject: Subject) -> Finding:
    """The stored steps of episodes that were played beside others, against what a replay pays now."""
    noise = subject.manifest.proctor.checks.noise + ROUNDING
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


ISOLATED = Check(
    "sessions_isolated",
    "64 episodes beside each other go as they go alone: no cross-talk.",
    _isolated,
    needs=("steps_and_ends", "step_deterministic"),
)
GROUP_NOISE = Check(
    "group_noise",
    "The same actions on the same task earn the same columns in eight sessions.",
    _group_noise,
    needs=("steps_and_ends",),
)
RESCORED = Check(
    "rescore_equal",
    "A stored episode, replayed, is scored as it was.",
    _rescored,
    needs=("steps_and_ends", "step_deterministic"),
)
