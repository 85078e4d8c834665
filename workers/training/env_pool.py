"""Env servers of a training process, leased and played on by an event loop in a thread."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest

import structlog
from anyio.from_thread import BlockingPortal, start_blocking_portal

from backend.core.loops import new_event_loop
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase
from workers.environments.client import EnvServer
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, RolloutPool, TooManyFailures
from workers.rollouts.seats import AssignSeats
from workers.storage.env_host import open_env_host
from workers.storage.recorder import RolloutWriter, RunRecorder
from workers.training.assignment import Assignment, TrainingEnv

Tag = uuid.UUID | None  # version id that tasks carry: None for the run's own environment
SECOND_TRY_SECONDS = 2.0  # pause before new servers are leased after most episodes failed

logger = structlog.get_logger(__name__)


class NoCapacity(RuntimeError):
    """The env host cannot serve all processes of the run at once."""


async def check_capacity(assignment: Assignment, processes: int) -> None:
    """Raise NoCapacity if some processes would wait forever for servers that others hold."""
    needs = [env.manifest.proctor.resources for env in assignment.envs]
    local = [need for need in needs if not need.remote]
    if not local:
        return
    async with open_env_host() as host:
        total = (await host.status())["capacity"]
    count = assignment.configuration.servers * processes
    servers, memory_mb = len(local) * count, sum(need.memory_mb for need in local) * count
    if servers > total["servers"] or memory_mb > total["memory_mb"]:
        raise NoCapacity(
            f"All processes together lease {servers} env servers with {memory_mb:,} MB; the env host has room for "
            f"{total['servers']} with {total['memory_mb']:,} MB. Choose fewer hardware.processes or servers, or "
            "grpo.staleness=0."
        )


@dataclass(frozen=True, slots=True)
class EnvCapacity:
    """Number of episodes of one environment that run at a time."""

    capacity: int
    is_grouped: bool = False  # groups are never split, because their rollouts are scored together


def plans_by_env(plans: Sequence[GroupPlan]) -> dict[Tag, list[GroupPlan]]:
    by_env: dict[Tag, list[GroupPlan]] = {}
    for plan in plans:
        by_env.setdefault(plan.task.version_id, []).append(plan)
    return by_env


def waves(plans: Sequence[GroupPlan], capacities: Mapping[Tag, EnvCapacity], concurrency: int) -> list[list[GroupPlan]]:
    """Split plans into waves of nearly equal size, each with its share of every environment.

    The split depends only on the arguments, so a batch holds the same episodes every time it is played.
    """
    by_env = plans_by_env(plans)
    count = 0
    for tag, own in by_env.items():
        capacity = capacities[tag].capacity
        if capacities[tag].is_grouped:
            fitting = max(1, capacity // max((len(plan.whole) for plan in own), default=1))
            count = max(count, -(-len(own) // fitting))
        else:
            count = max(count, -(-_episodes(own) // capacity))
    while True:
        parts = [_split(own, count, is_grouped=capacities[tag].is_grouped) for tag, own in by_env.items()]
        result = [[plan for part in wave for plan in part] for wave in zip_longest(*parts, fillvalue=())]
        largest = max(map(_episodes, result), default=0)
        if largest <= concurrency or len(result) < count or count >= _episodes(plans):
            return result
        count += 1


def _split(plans: Sequence[GroupPlan], parts: int, *, is_grouped: bool) -> list[list[GroupPlan]]:
    if is_grouped:
        limit = -(-len(plans) // parts)
        return [list(plans[first : first + limit]) for first in range(0, len(plans), limit)]
    limit = -(-_episodes(plans) // parts)
    result: list[list[GroupPlan]] = []
    room = 0
    for plan in plans:
        members = plan.members
        while members:
            if room == 0:
                result.append([])
                room = limit
            taken, members = members[:room], members[room:]
            result[-1].append(replace(plan, members=taken))
            room -= len(taken)
    return result


def _episodes(plans: Sequence[GroupPlan]) -> int:
    return sum(len(plan.members) for plan in plans)


class EnvPool:
    """Plays episodes for synchronous code. Leases and sockets stay open between calls."""

    def __init__(self, portal: BlockingPortal, envs: Sequence[TrainingEnv], servers: int, concurrency: int) -> None:
        """`servers`: number of servers to lease for each environment."""
        self.portal, self.concurrency, self._count = portal, concurrency, servers
        self._envs = {env.tag: env for env in envs}
        self._servers: dict[Tag, EnvServer] = {}
        self._capacities: dict[Tag, EnvCapacity] = {}

    async def lease(self) -> None:
        async with AsyncExitStack() as stack:
            for tag, env in self._envs.items():
                host = await stack.enter_async_context(open_env_host())
                await host.prepare(env.content_hash, env.files)
                lease = host.lease(env.content_hash, env.manifest.proctor.resources, servers=self._count)
                self._servers[tag] = server = await stack.enter_async_context(lease)
                sessions, is_grouped = min(self.concurrency, server.sessions), env.manifest.proctor.tasks.grouped
                self._capacities[tag] = EnvCapacity(sessions, is_grouped)
            self.capacity = min(self.concurrency, sum(server.sessions for server in self._servers.values()))
            self.leases = stack.pop_all()

    def server_of(self, tag: Tag) -> EnvServer:
        """Return the leased server of an environment, to use on the loop of `portal`."""
        return self._servers[tag]

    def play(
        self,
        plans: Sequence[GroupPlan],
        policy: Policy,
        *,
        phase: Phase,
        seed: int,
        training_step: int | None = None,
        recorder: RunRecorder | None = None,
        seats: AssignSeats | None = None,
        on_rollout: Callable[[Rollout], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Play all members of all groups until `should_stop`, and store them if there is a recorder.

        If most episodes fail, the servers are replaced and the missing rollouts are played once more.
        """
        played: set[tuple[int, int]] = set()
        failures: list[Rollout] = []

        async def play_missing() -> None:
            missing = []
            for plan in plans:
                members = tuple(member for member in plan.members if (plan.ordinal, member) not in played)
                if members:
                    missing.append(replace(plan, members=members, size=len(plan.whole)))
            async with AsyncExitStack() as stack:
                writer = None if recorder is None else await stack.enter_async_context(RolloutWriter(recorder))

                async def take(rollout: Rollout) -> None:
                    if rollout.is_completed:
                        played.add((rollout.group, rollout.member))
                    else:
                        failures.append(rollout)
                    on_rollout(rollout)
                    if writer is not None:
                        await writer.put(rollout)

                tasks = [
                    asyncio.ensure_future(
                        RolloutPool(
                            own,
                            server=self._servers[tag],
                            policy=policy,
                            manifest=self._envs[tag].manifest,
                            phase=phase,
                            seed=seed,
                            concurrency=self._capacities[tag].capacity,
                            on_rollout=take,
                            should_stop=should_stop,
                            training_step=training_step,
                            seats=seats,
                        ).play()
                    )
                    for tag, own in plans_by_env(missing).items()
                ]
                try:  # the first error cancels the other environments
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
            if failures and not played:  # too few for the engine's circuit breaker
                raise TooManyFailures(f"none of {len(failures)} rollouts succeeded: {failures[-1].error_message}")

        try:
            self.portal.call(play_missing)
        except TooManyFailures as error:
            logger.warning("most episodes failed; trying again on new servers", error=str(error))
            self.portal.call(self.leases.aclose)
            time.sleep(SECOND_TRY_SECONDS)
            self.portal.call(self.lease)
            self.portal.call(play_missing)

    def play_in_lockstep(
        self,
        plans: Sequence[GroupPlan],
        policy: LocalPolicy,
        *,
        phase: Phase,
        seed: int,
        training_step: int | None = None,
        recorder: RunRecorder | None = None,
        seats: AssignSeats | None = None,
    ) -> list[Rollout]:
        """Return all rollouts in the order of the plans, played in waves whose batches are the same every time.

        `seats`: who takes the other seats of environments that have seats; local policies must have joined `policy`.
        """
        rollouts: list[Rollout] = []
        for wave in waves(plans, self._capacities, self.concurrency):
            policy.expected = _episodes(wave)
            self.play(
                wave,
                policy,
                phase=phase,
                seed=seed,
                training_step=training_step,
                recorder=recorder,
                seats=seats,
                on_rollout=rollouts.append,
            )
        played = {(rollout.group, rollout.member): rollout for rollout in rollouts}  # second tries replace first ones
        return [played[plan.ordinal, member] for plan in plans for member in plan.members]

    def close_policy(self, policy: Policy | None) -> None:
        if policy is not None:
            self.portal.call(policy.aclose)


@contextmanager
def open_env_pool(envs: Sequence[TrainingEnv], choice: TrainingConfiguration) -> Iterator[EnvPool]:
    with start_blocking_portal(backend_options={"loop_factory": new_event_loop}, name="env-pool") as portal:
        pool = EnvPool(portal, envs, choice.servers, choice.concurrency)
        portal.call(pool.lease)
        try:
            yield pool
        finally:
            portal.call(pool.leases.aclose)
