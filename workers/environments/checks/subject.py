"""The environment version under test: a running server and the rollouts played on it so far."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.answers import AnswerForm
from backend.domain.environments.fixtures import JudgedFixture
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec, task_of
from backend.domain.vocabulary import Phase, Split
from workers.environments.checks.policies import DEGENERATE, ORDER, SCRIPTS
from workers.environments.client import EnvServer, EnvSession, Observation
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan, OnRollout, RolloutPool, TooManyFailures

CONCURRENCY = 16
SECOND_HASH_SEED = 1
"""Seed of Python's string hashes in the second process. All other servers of the env host use 0."""
REFERENCE_GROUPS, REFERENCE_MEMBERS = 24, 4


@dataclass(frozen=True, slots=True)
class Reference:
    """The stored policy chosen to measure the tasks."""

    name: str
    policy: Policy


@dataclass(slots=True)
class CheckSubject:
    """The input of every check. Episodes are played once and shared."""

    manifest: Manifest
    server: EnvServer
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of the package, for its fixtures and its grader."""
    generated: Collection[str] = ()
    """Paths of standard files that Proctor generated. They are not the package's grader."""
    judged: Sequence[JudgedFixture] = ()
    """Reviewed episodes of this environment, played on any version."""
    seed: int = 0
    on_rollout: OnRollout = lambda rollout: None
    """Called with every rollout as it ends, including failed ones."""
    should_stop: Callable[[], bool] = lambda: False
    second_process: Callable[[], AbstractAsyncContextManager[EnvServer]] | None = None
    """Starts another server process of the same package."""
    branch_recorder: Callable[[], AbstractAsyncContextManager[EnvServer]] | None = None
    """Starts a server process of the same package that records which branches run."""
    reference: Reference | None = None
    episodes: int = 0
    """Number of episodes started so far."""
    played: dict[str, list[Rollout]] = field(default_factory=dict)
    """Rollouts by policy, including failed ones."""
    timeout: float = field(init=False)
    """Time limit of one step in seconds."""
    levels: int = field(init=False)
    noise: float = field(init=False)
    scripts: list[str] = field(init=False)
    """Scripted policies that can be played: those of the manifest, and those derived from recorded answers."""
    repeated: list[object] | None = None
    """Episodes with repeated actions, once played."""
    has_measured_bounds: bool = False
    """The manifest declares no bounds of the reward; `manifest` has measured ones."""
    form: AnswerForm | None = None
    """The form in which a recorded answer earns the most, if `gold` was derived from recorded answers."""
    began: float = field(default_factory=time.perf_counter)
    """When the checks began, on the clock of `perf_counter`."""
    _replays: dict[int, list[Observation]] = field(default_factory=dict)
    _replay_seconds: float = 0.0

    def __post_init__(self) -> None:
        proctor = self.manifest.proctor
        self.timeout, self.levels = proctor.episode.step_timeout_seconds, proctor.tasks.levels
        self.noise, self.scripts = proctor.checks.noise, list(proctor.scripts)

    def tasks(self, per_level: int, split: Split = Split.HELDOUT) -> list[TaskSpec]:
        """Return tasks of a split, the same number of each level: at most 240, but at least two of each."""
        per_level = max(2, min(per_level, 240 // self.levels))
        tasks = self.manifest.proctor.tasks
        count = min(per_level * self.levels, tasks.heldout if split is Split.HELDOUT else tasks.train)
        return [task_of(self.manifest, split, index) for index in range(count)]

    async def rollouts(self, name: str) -> list[Rollout]:
        """Return rollouts of a scripted or degenerate policy on held-out tasks, in the order of the tasks."""
        if name not in self.played:
            if name in SCRIPTS or name in self.scripts:
                policy: Policy = ScriptedPolicy(name)
            else:
                needs_gold = name in {"constant", "answer_list"} and "gold" in self.scripts
                gold = await self.completed("gold") if needs_gold else []
                policy = DEGENERATE[name]([rollout.steps[0].reply for rollout in gold if rollout.steps])
            tasks = [(task, 1) for task in self.tasks(64 if name == "gold" else 24)]
            began = time.perf_counter()
            first = len(await self.play(name, policy, tasks[:CONCURRENCY]))
            seconds = time.perf_counter() - began  # the first episodes predict how many fit into five seconds
            count = max(2 * self.levels, int(5.0 / seconds * CONCURRENCY))
            await self.play(name, policy, tasks[first:count], offset=first)
        return self.played[name]

    async def completed(self, name: str) -> list[Rollout]:
        return [rollout for rollout in await self.rollouts(name) if rollout.is_completed]

    async def reference_rollouts(self) -> list[Rollout]:
        """Play groups with the chosen policy for two minutes, as models are slow; includes failed rollouts."""
        if self.reference is not None and "chosen" not in self.played:
            tasks = [(task, REFERENCE_MEMBERS) for task in self.tasks(max(2, REFERENCE_GROUPS // self.levels))]
            first = CONCURRENCY // REFERENCE_MEMBERS
            began = time.perf_counter()
            await self.play("chosen", self.reference.policy, tasks[:first])
            count = int(120.0 / (time.perf_counter() - began) * first)
            await self.play("chosen", self.reference.policy, tasks[first : min(count, REFERENCE_GROUPS)], offset=first)
        return self.played.get("chosen", [])

    def all_completed(self) -> list[Rollout]:
        return [rollout for rollouts in self.played.values() for rollout in rollouts if rollout.is_completed]

    async def play(
        self,
        name: str,
        policy: Policy,
        tasks: Sequence[tuple[TaskSpec, int]],
        *,
        manifest: Manifest | None = None,
        offset: int = 0,
        server: EnvServer | None = None,
    ) -> list[Rollout]:
        """Play `(task, group size)` pairs with a policy listed in ORDER. Includes failed rollouts."""
        # groups are numbered by policy, so that a repeated check job finds the rows of its first attempt
        first = ORDER.index(name) * 10_000 + offset
        rollouts: list[Rollout] = []

        def keep(rollout: Rollout) -> Awaitable[None] | None:
            rollouts.append(rollout)
            return self.on_rollout(rollout)

        with suppress(TooManyFailures):
            await RolloutPool(
                [GroupPlan(task, first + number, tuple(range(size))) for number, (task, size) in enumerate(tasks)],
                server=server or self.server,
                policy=policy,
                manifest=manifest or self.manifest,
                phase=Phase.CHECK,
                seed=self.seed,
                concurrency=CONCURRENCY,
                on_rollout=keep,
                should_stop=self.should_stop,
                max_attempts=1,  # checks look for failures
            ).play()
        self.episodes += len(rollouts)
        rollouts.sort(key=lambda rollout: (rollout.group, rollout.member))
        self.played.setdefault(name, []).extend(rollouts)
        return rollouts

    async def open(self, session: EnvSession, task: TaskSpec) -> tuple[Observation, object]:
        """Reset; return the observation, and the listed tools if listing them takes an action."""
        self.episodes += 1
        opening = await session.reset(task.reset_arguments(), timeout=self.timeout)
        spec = self.manifest.proctor.agent.action
        if not spec.discover:
            return opening, None
        listing = await session.step(spec.discover, timeout=self.timeout)
        return opening, listing.fields.get(str(spec.tools))

    async def act(
        self, session: EnvSession, opening: Observation, actions: Sequence[dict[str, Any]]
    ) -> list[Observation]:
        """Return the opening and the responses to the actions, up to the end of the episode."""
        responses = [opening]
        for action in actions:
            if responses[-1].done:
                break
            responses.append(await session.step(action, timeout=self.timeout))
        return responses

    async def replay(
        self, task: TaskSpec, actions: Sequence[dict[str, Any]], server: EnvServer | None = None
    ) -> list[Observation]:
        """Play the actions in a new session; return the opening and the responses."""
        async with (server or self.server).session() as session:
            opening, _ = await self.open(session, task)
            return await self.act(session, opening, actions)

    async def stored_replay(self, rollout: Rollout) -> list[Observation]:
        """Replay the rollout with no other session on the server; done once for all checks."""
        if id(rollout) not in self._replays:
            began = time.perf_counter()
            self._replays[id(rollout)] = await self.replay(rollout.task, actions_of(rollout))
            self._replay_seconds += time.perf_counter() - began
        return self._replays[id(rollout)]

    async def openings(
        self, tasks: Sequence[TaskSpec], *, with_state: bool = False
    ) -> list[tuple[Observation, dict[str, Any]]]:
        """Reset each task; return the observations and, on request, the environment's states."""
        limiter = asyncio.Semaphore(CONCURRENCY)

        async def open_one(task: TaskSpec) -> tuple[Observation, dict[str, Any]]:
            async with limiter, self.server.session() as session:
                opening, _ = await self.open(session, task)
                return opening, await session.state(timeout=self.timeout) if with_state else {}

        return await asyncio.gather(*(open_one(task) for task in tasks))

    def replay_limit(self, most: int) -> int:
        """Return how many episodes a check may replay one after the other in eight seconds, 4 to `most`."""
        if self._replays:
            seconds = self._replay_seconds / len(self._replays)
        else:  # before the first replay: the time that an episode of random play adds at full concurrency
            random = [rollout for rollout in self.played.get("random", []) if rollout.is_completed]
            total = sum(rollout.environment_seconds for rollout in random)
            seconds = total / len(random) / min(CONCURRENCY, self.server.sessions) if random else 0.0
        return most if not seconds else max(4, min(most, int(8.0 / seconds)))


def actions_of(rollout: Rollout) -> list[dict[str, Any]]:
    """Return the actions that reached the environment, of all seats."""

    def made(steps: Sequence[Step]) -> list[dict[str, Any]]:
        return [step.action for step in steps if step.action is not None and step.note is None]

    if rollout.seats is None:
        return made(rollout.steps)
    left = {rollout.seats.seat: iter(made(rollout.steps))}
    left |= {play.seat: iter(made(play.steps)) for play in rollout.seats.others}
    return [action for seat in rollout.seats.order if (action := next(left[seat], None)) is not None]


def rewards_of(rollout: Rollout, responses: Sequence[Observation]) -> list[dict[str, float]]:
    """Return the rewards of the responses to the rollout's actions, those of its seat if there are several."""
    if rollout.seats is None:
        return [response.rewards for response in responses]
    seat, rows = rollout.seats.seat, []
    for mover, response in zip(rollout.seats.order, responses, strict=False):
        rows.append(response.rewards if mover == seat else response.metadata.get("seats", {}).get(seat, {}))
    return rows
