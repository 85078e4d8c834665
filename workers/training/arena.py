"""Where a training process plays: an event loop in a thread of its own that holds the leased env servers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import structlog

from backend.domain.manifest import Manifest
from backend.domain.rollouts import Rollout
from backend.domain.vocabulary import Phase
from workers.environments.client import EnvServer
from workers.jobs.env_host import open_env_host
from workers.jobs.recording import RunRecorder
from workers.jobs.writer import RolloutWriter
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, TooManyFailures, play_groups

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


class Arena:
    """Plays episodes for synchronous code. The loop goes on between calls, so that leases and sockets stay alive."""

    def __init__(self, open_server: OpenServer, manifest: Manifest, *, concurrency: int) -> None:
        self.manifest, self.concurrency = manifest, concurrency
        self._open_server = open_server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="arena", daemon=True)

    def __enter__(self) -> "Arena":
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
            self._run(self._opened.__aexit__(None, None, None))
        finally:
            self._stop_loop()

    @property
    def capacity(self) -> int:
        """Episodes at a time."""
        return min(self.concurrency, self._server.sessions)

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

        for wave in waves(plans, self.capacity, is_grouped=self.manifest.proctor.tasks.grouped):
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
            await play_groups(
                plans,
                server=self._server,
                policy=policy,
                manifest=self.manifest,
                phase=phase,
                seed=seed,
                concurrency=self.capacity,
                on_rollout=on_rollout,
                should_stop=should_stop,
                training_step=training_step,
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

    async def _open(self) -> None:
        self._opened = self._open_server()
        self._server = await self._opened.__aenter__()

    async def _reopen(self) -> None:
        await self._opened.__aexit__(None, None, None)
        await asyncio.sleep(SECOND_TRY_SECONDS)
        await self._open()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _missing(plans: Sequence[GroupPlan], played: set[tuple[int, int]]) -> list[GroupPlan]:
    left = []
    for plan in plans:
        members = tuple(member for member in plan.members if (plan.ordinal, member) not in played)
        if members:
            left.append(replace(plan, members=members, size=len(plan.whole)))
    return left


def waves(plans: Sequence[GroupPlan], capacity: int, *, is_grouped: bool = False) -> list[list[GroupPlan]]:
    """The plans in equal parts that fit side by side: one batch then holds the same episodes whenever it is played.

    `is_grouped`: a group is never cut, because its members are scored together.
    """
    if is_grouped:
        fitting = max(1, capacity // max((len(plan.whole) for plan in plans), default=1))
        return [list(plans[first : first + fitting]) for first in range(0, len(plans), fitting)]
    total = sum(len(plan.members) for plan in plans)
    count = -(-total // capacity)
    limit = -(-total // count) if count else 0
    parts: list[list[GroupPlan]] = []
    room = 0
    for plan in plans:
        members = plan.members
        while members:
            if room == 0:
                parts.append([])
                room = limit
            taken, members = members[:room], members[room:]
            parts[-1].append(GroupPlan(plan.task, plan.ordinal, taken))
            room -= len(taken)
    return parts
