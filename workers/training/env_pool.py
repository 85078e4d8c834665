"""Where a training process plays: an event loop in a thread of its own that holds the leased env servers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import structlog

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import Phase
from workers.environments.client import EnvServer
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, TooManyFailures, play_groups
from workers.storage.env_host import open_env_host
from workers.storage.recorder import RunRecorder
from workers.storage.rollout_writer import RolloutWriter
from workers.training.assignment import Assignment
from workers.training.planning.training_env import TrainingEnv
from workers.training.planning.waves import EnvCapacity, Tag, by_room, waves

T = TypeVar("T")
OpenServer = Callable[[], AbstractAsyncContextManager[EnvServer]]

SECOND_TRY_SECONDS = 2.0
"""Before new servers are leased instead of ones in which most episodes failed."""

logger = structlog.get_logger(__name__)


@asynccontextmanager
async def leased_server(
    content_hash: str, files: Mapping[str, str], manifest: Manifest, servers: int
) -> AsyncIterator[EnvServer]:
    """The package made ready, and its servers for ourselves."""
    async with open_env_host() as host:
        await host.prepare(content_hash, files)
        async with host.lease(content_hash, manifest.proctor.resources, servers=servers) as server:
            yield server


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """An environment to play in."""

    open_server: OpenServer
    manifest: Manifest


def env_pool_of(assignment: Assignment) -> "EnvPool":
    """For a run: servers of all its environments."""
    choice = assignment.configuration

    def ground(env: TrainingEnv) -> EnvSpec:
        how = (env.content_hash, env.files, env.manifest, choice.servers)
        return EnvSpec(partial(leased_server, *how), env.manifest)

    own, *others = assignment.envs
    first = ground(own)
    further = {other.tag: ground(other) for other in others}
    return EnvPool(first.open_server, first.manifest, concurrency=choice.concurrency, further=further)


class EnvPool:
    """Plays episodes for synchronous code. The loop goes on between calls, so that leases and sockets stay alive."""

    def __init__(
        self,
        open_server: OpenServer,
        manifest: Manifest,
        *,
        concurrency: int,
        further: Mapping[Tag, EnvSpec] = MappingProxyType({}),
    ) -> None:
        """`further`: environments whose tasks carry the id of their version."""
        self.concurrency = concurrency
        self._grounds: dict[Tag, EnvSpec] = {None: EnvSpec(open_server, manifest), **further}
        self._servers: dict[Tag, EnvServer] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="env-pool", daemon=True)

    def __enter__(self) -> "EnvPool":
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self._stop_loop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._opened.aclose())
        finally:
            self._stop_loop()

    @property
    def capacity(self) -> int:
        """Episodes at a time."""
        return min(self.concurrency, sum(server.sessions for server in self._servers.values()))

    def play(
        self,
        plans: Sequence[GroupPlan],
        policy: Policy,
        *,
        phase: Phase,
        seed: int,
        training_step: int | None = None,
        recorder: RunRecorder | None = None,
        on_rollout: Callable[[Rollout], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Play all members of all groups, and store them where a recorder is given. Less when stopped.

        When most episodes fail, the servers are replaced and what is missing is played once more.
        """
        played: set[tuple[int, int]] = set()
        failures: list[Rollout] = []

        def take(rollout: Rollout) -> None:
            if rollout.is_completed:
                played.add((rollout.group, rollout.member))
            else:
                failures.append(rollout)
            on_rollout(rollout)

        async def play_missing() -> None:
            await self._play(_missing(plans, played), policy, take, phase, seed, training_step, recorder, should_stop)
            if failures and not played:  # too few for the engine's circuit breaker
                raise TooManyFailures(f"none of {len(failures)} rollouts succeeded: {failures[-1].error_message}")

        try:
            self._run(play_missing())
        except TooManyFailures as error:
            logger.warning("most episodes failed, once more on new servers", error=str(error))
            self._run(self._reopen())
            self._run(play_missing())

    def play_in_lockstep(
        self,
        plans: Sequence[GroupPlan],
        policy: LocalPolicy,
        *,
        phase: Phase,
        seed: int,
        training_step: int | None = None,
        recorder: RunRecorder | None = None,
    ) -> list[Rollout]:
        """All rollouts in the order of the plans, played in waves whose batches are the same every time."""
        played: dict[tuple[int, int], Rollout] = {}

        def take(rollout: Rollout) -> None:
            played[rollout.group, rollout.member] = rollout

        for wave in waves(plans, self._rooms(), self.concurrency):
            policy.expect(sum(len(plan.members) for plan in wave))
            self.play(
                wave,
                policy,
                phase=phase,
                seed=seed,
                training_step=training_step,
                recorder=recorder,
                on_rollout=take,
            )
        return [played[plan.ordinal, member] for plan in plans for member in plan.members]

    async def _play(
        self,
        plans: Sequence[GroupPlan],
        policy: Policy,
        take: Callable[[Rollout], None],
        phase: Phase,
        seed: int,
        training_step: int | None,
        recorder: RunRecorder | None,
        should_stop: Callable[[], bool],
    ) -> None:
        async def play(on_rollout: Any) -> None:
            await _together(
                play_groups(
                    own,
                    server=self._servers[tag],
                    policy=policy,
                    manifest=self._grounds[tag].manifest,
                    phase=phase,
                    seed=seed,
                    concurrency=self._rooms()[tag].capacity,
                    on_rollout=on_rollout,
                    should_stop=should_stop,
                    training_step=training_step,
                )
                for tag, own in by_room(plans).items()
            )

        if recorder is None:
            await play(take)
            return
        async with RolloutWriter(recorder) as writer:

            async def store(rollout: Rollout) -> None:
                take(rollout)
                await writer.put(rollout)

            await play(store)

    def close_policy(self, policy: Policy) -> None:
        self._run(policy.aclose())

    def _rooms(self) -> dict[Tag, EnvCapacity]:
        return {
            tag: EnvCapacity(min(self.concurrency, server.sessions), self._grounds[tag].manifest.proctor.tasks.grouped)
            for tag, server in self._servers.items()
        }

    async def _open(self) -> None:
        async with AsyncExitStack() as stack:
            for tag, ground in self._grounds.items():
                self._servers[tag] = await stack.enter_async_context(ground.open_server())
            self._opened = stack.pop_all()

    async def _reopen(self) -> None:
        await self._opened.aclose()
        await asyncio.sleep(SECOND_TRY_SECONDS)
        await self._open()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at a time; the first error ends the others and comes out as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _missing(plans: Sequence[GroupPlan], played: set[tuple[int, int]]) -> list[GroupPlan]:
    left = []
    for plan in plans:
        members = tuple(member for member in plan.members if (plan.ordinal, member) not in played)
        if members:
            left.append(replace(plan, members=members, size=len(plan.whole)))
    return left
