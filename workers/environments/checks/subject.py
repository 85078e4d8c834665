"""The environment version that is checked: a running server and the rollouts played on it so far."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.manifest import Manifest
from backend.domain.review.judged_fixtures import JudgedFixture
from backend.domain.rollouts.rollout import Rollout, TaskSpec, task_of
from backend.domain.vocabulary import Phase, Split
from workers.environments.checks.policies import DEGENERATE, ORDER, SCRIPTS, Known
from workers.environments.client import EnvServer, EnvSession, Observation
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan, OnRollout, TooManyFailures, play_groups

CONCURRENCY = 16
PER_LEVEL = 24
GOLD_PER_LEVEL = 64
EPISODES_AT_MOST = 240
"""Of one policy, over all levels."""
SECONDS_PER_POLICY = 5.0
"""A slow environment is played less often, so that its certificate comes in minutes."""
REPLAY_SECONDS = 8.0
"""For all replays of one check, likewise."""
GROUPS_PER_POLICY = 10_000
"""Ordinals of groups that are reserved for one policy, so that a repeated check meets its first rollouts."""

TWIN_HASH_SEED = 1
"""Seed of Python's string hashes in the second process; the first has 0, as all servers of the host have."""
REFERENCE_GROUPS, REFERENCE_MEMBERS = 24, 4
REFERENCE_SECONDS = 120.0
"""For all groups of the chosen policy: a model answers slowly, and a certificate comes in minutes."""

Twin = Callable[[], AbstractAsyncContextManager[EnvServer]]


@dataclass(frozen=True, slots=True)
class Reference:
    """The stored policy chosen to measure the tasks."""

    name: str
    policy: Policy


@dataclass(slots=True)
class Subject:
    """The input of checks. Episodes are played once and shared."""

    manifest: Manifest
    server: EnvServer
    files: Mapping[str, str] = field(default_factory=dict)
    """The package, for its fixtures."""
    judged: Sequence[JudgedFixture] = ()
    """Episodes on which people gave a verdict, on whatever version."""
    seed: int = 0
    on_rollout: OnRollout = lambda rollout: None
    """Called with every rollout as it ends, including failed ones."""
    should_stop: Callable[[], bool] = lambda: False
    twin: Twin | None = None
    """Another process of the same package, for as long as it is needed."""
    reference: Reference | None = None
    episodes: int = 0
    """Begun so far."""
    _played: dict[str, list[Rollout]] = field(default_factory=dict)
    _alone: dict[int, list[Observation]] = field(default_factory=dict)
    _alone_seconds: float = 0.0

    @property
    def timeout(self) -> float:
        return self.manifest.proctor.episode.step_timeout_seconds

    @property
    def levels(self) -> int:
        return self.manifest.proctor.tasks.levels

    @property
    def scripts(self) -> list[str]:
        return list(self.manifest.proctor.scripts)

    def tasks(self, per_level: int, split: Split = Split.HELDOUT) -> list[TaskSpec]:
        """Tasks of a split, as many of each level."""
        per_level = max(2, min(per_level, EPISODES_AT_MOST // self.levels))
        tasks = self.manifest.proctor.tasks
        count = min(per_level * self.levels, tasks.heldout if split is Split.HELDOUT else tasks.train)
        return [task_of(self.manifest, split, index) for index in range(count)]

    async def rollouts(self, policy: str) -> list[Rollout]:
        """Rollouts of a script or of a degenerate policy on held-out tasks, in the order of the tasks."""
        if policy not in self._played:
            acting = await self._policy(policy)
            tasks = [(task, 1) for task in self.tasks(GOLD_PER_LEVEL if policy == "gold" else PER_LEVEL)]
            began = time.perf_counter()
            first = len(await self.play(policy, acting, tasks[:CONCURRENCY]))
            seconds = time.perf_counter() - began  # the first few tell how long all would take
            count = max(2 * self.levels, int(SECONDS_PER_POLICY / seconds * CONCURRENCY))
            await self.play(policy, acting, tasks[first:count], offset=first)
        return self._played[policy]

    async def reference_rollouts(self) -> list[Rollout]:
        """Play groups with the chosen policy within the time limit; includes failed rollouts."""
        if self.reference is not None and "chosen" not in self._played:
            tasks = [(task, REFERENCE_MEMBERS) for task in self.tasks(max(2, REFERENCE_GROUPS // self.levels))][
                :REFERENCE_GROUPS
            ]
            first = CONCURRENCY // REFERENCE_MEMBERS
            began = time.perf_counter()
            await self.play("chosen", self.reference.policy, tasks[:first])
            seconds = time.perf_counter() - began
            count = int(REFERENCE_SECONDS / seconds * first)
            await self.play("chosen", self.reference.policy, tasks[first:count], offset=first)
        return self._played.get("chosen", [])

    async def completed(self, policy: str) -> list[Rollout]:
        return [rollout for rollout in await self.rollouts(policy) if rollout.is_completed]

    async def known(self) -> Known:
        """Return the knowledge that perfect play reveals, if there is any."""
        if "gold" not in self.scripts:
            return Known()
        return Known([rollout.steps[0].reply for rollout in await self.completed("gold") if rollout.steps])

    def all_rollouts(self) -> list[Rollout]:
        """All completed rollouts so far."""
        return [rollout for played in self._played.values() for rollout in played if rollout.is_completed]

    def played(self) -> Mapping[str, list[Rollout]]:
        """Rollouts by policy, failed ones included."""
        return self._played

    async def play(
        self,
        name: str,
        policy: Policy,
        tasks: Sequence[tuple[TaskSpec, int]],
        *,
        manifest: Manifest | None = None,
        offset: int = 0,
    ) -> list[Rollout]:
        """Rollouts of one of ORDER, `(task, members of its group)`. Includes failed ones."""
        first = ORDER.index(name) * GROUPS_PER_POLICY + offset
        rollouts: list[Rollout] = []

        def keep(rollout: Rollout) -> Awaitable[None] | None:
            rollouts.append(rollout)
            return self.on_rollout(rollout)

        with suppress(TooManyFailures):
            await play_groups(
                [GroupPlan(task, first + number, tuple(range(size))) for number, (task, size) in enumerate(tasks)],
                server=self.server,
                policy=policy,
                manifest=manifest or self.manifest,
                phase=Phase.CHECK,
                seed=self.seed,
                concurrency=CONCURRENCY,
                on_rollout=keep,
                should_stop=self.should_stop,
                max_attempts=1,  # a failure is what a check looks for
            )
        self.episodes += len(rollouts)
        rollouts.sort(key=lambda rollout: (rollout.group, rollout.member))
        self._played.setdefault(name, []).extend(rollouts)
        return rollouts

    async def replay(self, session: EnvSession, task: TaskSpec, actions: Sequence[dict[str, Any]]) -> list[Observation]:
        """The answers to a reset and to these actions, up to the end of the episode."""
        opening = await self.open(session, task)
        return [opening, *await self.go_on(session, opening, actions)]

    async def open(self, session: EnvSession, task: TaskSpec) -> Observation:
        """Reset, and have the tools listed where that takes an action."""
        return (await self.begin(session, task))[0]

    async def begin(self, session: EnvSession, task: TaskSpec) -> tuple[Observation, Any]:
        """The same, with the tools that were listed; None where the opening itself lists them."""
        self.episodes += 1
        opening = await session.reset(task.reset_arguments(), timeout=self.timeout)
        spec = self.manifest.proctor.agent.action
        if not spec.discover:
            return opening, None
        listing = await session.step(spec.discover, timeout=self.timeout)
        return opening, listing.fields.get(str(spec.tools))

    async def go_on(
        self, session: EnvSession, newest: Observation, actions: Sequence[dict[str, Any]]
    ) -> list[Observation]:
        answers: list[Observation] = []
        for action in actions:
            if newest.done:
                break
            newest = await session.step(action, timeout=self.timeout)
            answers.append(newest)
        return answers

    async def alone(self, rollout: Rollout) -> list[Observation]:
        """Replay the rollout's actions alone; done once for all checks."""
        if id(rollout) not in self._alone:
            began = time.perf_counter()
            async with self.server.session() as session:
                self._alone[id(rollout)] = await self.replay(session, rollout.task, actions_of(rollout))
            self._alone_seconds += time.perf_counter() - began
        return self._alone[id(rollout)]

    async def openings(
        self, tasks: Sequence[TaskSpec], *, with_state: bool = False
    ) -> list[tuple[Observation, dict[str, Any]]]:
        """How these tasks begin, and what the environment keeps to itself."""
        gate = asyncio.Semaphore(CONCURRENCY)

        async def look(task: TaskSpec) -> tuple[Observation, dict[str, Any]]:
            async with gate, self.server.session() as session:
                opening = await self.open(session, task)
                return opening, await session.state(timeout=self.timeout) if with_state else {}

        return await asyncio.gather(*(look(task) for task in tasks))

    def replays(self, most: int, *, least: int = 4) -> int:
        """How many episodes a check may replay one after the other."""
        seconds = self._alone_seconds / len(self._alone) if self._alone else self._busy_seconds()
        return most if not seconds else max(least, min(most, int(REPLAY_SECONDS / seconds)))

    @asynccontextmanager
    async def other_process(self, seconds: float) -> AsyncIterator[EnvServer | None]:
        """A second server process of this package; None when there is no room for it within that time."""
        async with AsyncExitStack() as stack:
            server = None
            if self.twin is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        server = await stack.enter_async_context(self.twin())
            yield server

    async def _policy(self, name: str) -> Policy:
        if name in SCRIPTS or name in self.scripts:
            return ScriptedPolicy(name)
        return DEGENERATE[name](await self.known() if name in {"constant", "answer_list"} else Known())

    def _busy_seconds(self) -> float:
        """Estimate the time that an episode adds at full concurrency, from episodes of the random policy."""
        played = [rollout.environment_seconds for rollout in self._played.get("random", []) if rollout.is_completed]
        return sum(played) / len(played) / min(CONCURRENCY, self.server.sessions) if played else 0.0


def actions_of(rollout: Rollout) -> list[dict[str, Any]]:
    """The actions that reached the environment."""
    return [step.action for step in rollout.steps if step.action is not None and step.note is None]
