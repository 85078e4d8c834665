"""Is an episode a function of its task and actions: repeated, in another process, and next to other sessions?"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import orjson

from backend.domain.environments.manifest import PLATFORM_COLUMNS
from backend.domain.errors import RolloutError
from backend.domain.rollouts.divergence import different_fields
from backend.domain.rollouts.rollout import Rollout, columns_over_episode
from workers.environments.checks.base import (
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
from workers.environments.checks.subject import CheckSubject, actions_of, rewards_of
from workers.environments.client import EnvServer, Observation

SAMPLES = 16
SESSIONS = 64
GROUPS, MEMBERS = 4, 8
ROUNDING = 1e-9
COLUMN_ROUNDING = 1e-6


@Check(
    label="Deterministic reset",
    sentence="The same task starts the same way every time.",
    advice="Derive everything random in `reset` from the task's seed, and never from the clock or global state.",
    example="""
    def reset(self, seed=None, split="train", level=0, **kwargs):
        chance = random.Random(f"{split}:{level}:{seed}")  # not random.random(), not the clock
        self._words = chance.sample(WORDS, 5)
    """,
    cost=Cost.RESETS,
    needs=("starts_and_resets",),
)
async def reset_deterministic(subject: CheckSubject) -> CheckFinding:
    """Reset 16 tasks twice. The observations must be equal (NeMo Gym: reseed)."""
    tasks = subject.tasks(SAMPLES // min(subject.levels, 4))[:SAMPLES]
    for task in tasks:
        first, second = await subject.replay(task, ()), await subject.replay(task, ())
        if difference := difference_of(first, second, subject.noise):
            played = await subject.rollouts("random")
            return failed(
                f"Two resets of {task.key} (seed {task.seed}): {difference}.",
                [rollout for rollout in played if rollout.task.key == task.key],
                task=task.reset_arguments(),
            )
    return passed(f"{len(tasks)} tasks, each reset twice: equal observations.", tasks=len(tasks))


@Check(
    label="Deterministic steps",
    sentence="The same actions on the same task get the same responses and rewards, also in another process.",
    advice="Use one random generator per episode, and sort sets before you iterate over them.",
    example="""
    def _reply(self) -> str:
        chance = random.Random(f"{self._seed}:{self._board}")
        return chance.choice(sorted(self._free))  # sets have no order
    """,
    cost=Cost.REPLAYS,
)
async def step_deterministic(subject: CheckSubject) -> CheckFinding:
    """Replay 16 episodes in the same process and in a second one. Observations, rewards and ends must be equal.

    The second process has another seed of Python's string hashes, so the iteration order of a set of strings differs.
    """
    samples = (await subject.completed("random"))[: subject.replay_limit(SAMPLES)]

    async def first_difference(server: EnvServer, where: str) -> CheckFinding | None:
        for rollout in samples:
            first = await subject.stored_replay(rollout)
            second = await subject.replay(rollout.task, actions_of(rollout), server)
            if difference := difference_of(first, second, subject.noise):
                return failed(
                    f"The same actions on {rollout.task.key} (seed {rollout.task.seed}), {where}: {difference}.",
                    rollout,
                )
        return None

    if finding := await first_difference(subject.server, "once more in the same process"):
        return finding
    async with AsyncExitStack() as stack:
        other = None
        if subject.second_process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(90):  # for room, and for an interpreter with another hash seed
                    other = await stack.enter_async_context(subject.second_process())
        if other is None:
            summary = f"{len(samples)} episodes played twice in one process: equal."
            return warned(f"{summary} There was no room for a second process to compare with.")
        if finding := await first_difference(other, "in another process, whose strings hash differently"):
            return finding
    steps = sum([len(await subject.stored_replay(rollout)) - 1 for rollout in samples])
    return passed(
        f"{len(samples)} episodes with {steps} steps, played twice in one process and once in another with different"
        " string hashes: equal observations, rewards, ends."
    )


@Check(
    label="Seeds differ",
    sentence="Different seeds give different episodes.",
    advice="Use the task's seed to generate the task.",
    example="""
    chance = random.Random(f"{split}:{level}:{seed}")
    self._target = chance.randint(1, 100)  # a function of the seed
    """,
    cost=Cost.REPLAYS,
)
async def seeds_differ(subject: CheckSubject) -> CheckFinding:
    """Play the same six actions on 16 seeds of a level. The openings or the responses must differ."""
    samples = await subject.completed("random")
    actions = max((actions_of(rollout) for rollout in samples), key=len, default=[])
    tasks = [rollout.task for rollout in samples if rollout.task.level == samples[0].task.level][:SAMPLES]
    if len(tasks) < 2:
        return does_not_apply("There is only one held-out task of a level: no seeds to compare.")
    episodes = set()
    for task in tasks:
        responses = await subject.replay(task, actions[:6])
        content = [[response.fields, response.rewards, response.done] for response in responses]
        episodes.add(orjson.dumps(content, option=orjson.OPT_SORT_KEYS))
    if len(episodes) == 1:
        return failed(f"{len(tasks)} seeds of one level gave the same episode: the seed has no effect.", samples)
    return passed(f"{len(tasks)} seeds of one level gave {len(episodes)} different episodes with the same actions.")


def difference_of(first: Sequence[Observation], second: Sequence[Observation], noise: float = 0.0) -> str | None:
    """Describe where the second episode diverges from the first. With noise, numbers in observations may differ."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        where = f"step {number}" if number else "the reset"
        if names := different_fields(one.fields, other.fields, noise)[:3]:
            pairs = [(name, clipped(one.fields.get(name)), clipped(other.fields.get(name))) for name in names]
            return f"{where} differs in {', '.join(f'`{name}` ({old} / {new})' for name, old, new in pairs)}"
        is_rewarded_alike = (
            one.rewards.keys() == other.rewards.keys()
            and (one.reward is None) == (other.reward is None)
            and all(abs(value - other.rewards[name]) <= noise + ROUNDING for name, value in one.rewards.items())
            # the scalar is a weighted sum, so with noise it may differ by more than a column
            and (noise or abs((one.reward or 0.0) - (other.reward or 0.0)) <= ROUNDING)
        )
        if not is_rewarded_alike:
            return f"{where} was rewarded {other.rewards or other.reward} instead of {one.rewards or one.reward}"
        if one.done != other.done:
            return f"{where} {'ended' if other.done else 'did not end'} it"
    return None


@Check(
    label="No noise in groups",
    sentence="The same actions on the same task earn the same columns in eight sessions.",
    advice="Remove randomness and shared state from the reward, or declare `checks.noise` if it cannot be removed.",
    example="""
    score = float(answer == self._expected)  # a function of the answer

    # Noise that cannot be removed is declared in openenv.yaml, under proctor.checks:
    noise: 0.05
    """,
    cost=Cost.REPLAYS,
)
async def group_noise(subject: CheckSubject) -> CheckFinding:
    """Replay 4 episodes (longest, best, worst, one more) in 8 sessions. Columns may differ by `checks.noise` at most.

    A group's advantages are differences of rewards, so noise in the reward would be learned.
    """
    rollouts = await subject.completed("random")
    extremes = [
        max(rollouts, key=lambda rollout: len(rollout.steps)),
        max(rollouts, key=lambda rollout: rollout.reward or 0.0),
        min(rollouts, key=lambda rollout: rollout.reward or 0.0),
    ]
    varied = list({id(rollout): rollout for rollout in [*extremes, *rollouts]}.values())[:GROUPS]
    samples = varied[: subject.replay_limit(GROUPS * MEMBERS) // MEMBERS or 1]
    widest = 0.0
    for rollout in samples:
        episodes = [await subject.replay(rollout.task, actions_of(rollout)) for _ in range(MEMBERS)]
        rows = [columns_over_episode(subject.manifest.columns, [r.rewards for r in each[1:]]) for each in episodes]
        for name in rows[0]:
            values = [row.get(name, math.nan) for row in rows]
            spread = max(values) - min(values)
            widest = max(widest, spread)
            if not spread <= subject.noise + COLUMN_ROUNDING:
                shown = ", ".join(f"{value:.4g}" for value in values)
                return failed(
                    f"The same actions on {rollout.task.key} in {MEMBERS} sessions earned `{name}`: {shown}.",
                    rollout,
                    column=name,
                    values=values,
                )
    return passed(
        f"{len(samples)} tasks, the same actions in {MEMBERS} sessions each: the widest spread of a column is"
        f" {widest:.2g} (allowed {subject.noise:g}).",
        spread=widest,
    )


@Check(
    label="Isolated sessions",
    sentence="64 concurrent episodes go the same way as each does alone.",
    advice="Keep the state of an episode in the environment object, not in the module, the class or a shared file.",
    example="""
    class GuessEnvironment(RewardedEnvironment):
        def __init__(self) -> None:
            super().__init__()
            self._guesses: list[int] = []  # in the object, not in the class or the module
    """,
    cost=Cost.REPLAYS,
    needs=("steps_and_ends", "step_deterministic"),
)
async def sessions_isolated(subject: CheckSubject) -> CheckFinding:
    """Play 64 sessions (or the server's maximum) at the same time. Each must equal the same episode played alone."""
    if subject.server.sessions < 2:
        return does_not_apply("The server supports one session at a time: there are no other sessions.")
    count = min(SESSIONS, subject.server.sessions)
    different = (await subject.completed("random"))[: subject.replay_limit(count)]
    samples = [different[number % len(different)] for number in range(count)]
    serial = [await subject.stored_replay(rollout) for rollout in samples]
    barrier = asyncio.Barrier(len(samples))

    async def play_concurrently(rollout: Rollout) -> list[Observation]:
        try:
            async with subject.server.session() as session:
                opening, _ = await subject.open(session, rollout.task)
                await barrier.wait()  # all sessions are reset before any of them steps
                return await subject.act(session, opening, actions_of(rollout))
        except RolloutError:
            await barrier.abort()  # or the others would wait forever
            raise

    concurrent = await asyncio.gather(*(play_concurrently(rollout) for rollout in samples))
    for rollout, alone, together in zip(samples, serial, concurrent, strict=True):
        if difference := difference_of(alone, together, subject.noise):
            return failed(
                f"{rollout.task.key}, next to {len(samples) - 1} other sessions, went differently: {difference}.",
                rollout,
            )
    return passed(f"{len(samples)} concurrent sessions gave the same as each alone.", sessions=len(samples))


@Check(
    label="Reproducible scores",
    sentence="A stored episode gets the same score when it is replayed.",
    advice="Make the reward a function of the task and the actions only.",
    example="""
    @column
    def correct(self) -> float:
        return float(self._answer == self._expected)  # no time, no counter across episodes
    """,
    cost=Cost.REPLAYS,
    needs=("steps_and_ends", "step_deterministic"),
)
async def rescore_equal(subject: CheckSubject) -> CheckFinding:
    """Replay 64 concurrently played episodes alone. Columns must be equal to 1e-6 (NeMo Gym: re-verifiable)."""
    samples = (await subject.completed("random"))[: subject.replay_limit(SESSIONS)]
    names = [name for name in subject.manifest.column_names if name not in PLATFORM_COLUMNS]
    different = []
    for rollout in samples:
        responses = await subject.stored_replay(rollout)
        now = columns_over_episode(subject.manifest.columns, rewards_of(rollout, responses[1:]))
        for name in names:
            if abs(now[name] - rollout.columns.get(name, 0.0)) > subject.noise + COLUMN_ROUNDING:
                different.append((rollout, name, now[name]))
                break
    if different:
        rollout, name, value = different[0]
        return failed(
            f"A replay scores {len(different)} of {len(samples)} stored episodes differently: {rollout.task.key} was"
            f" stored with `{name}` {rollout.columns.get(name, 0.0):.6g} and now earns {value:.6g}.",
            [rollout for rollout, _, _ in different],
        )
    return passed(f"{len(samples)} stored episodes, replayed: {listed(names, 8)} are the same in all of them.")
