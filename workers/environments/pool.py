"""Leases of servers, the queue for capacity, and idle servers kept warm for the next lease."""

import asyncio
import os
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import StrEnum

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError, boundary
from workers.environments.launchers import ServerLauncher
from workers.environments.packages import StoredPackage
from workers.environments.servers import START_SECONDS, RunningServer

TTL_SECONDS = 10.0
"""A lease that no connection holds for this long has lost its client."""
IDLE_SECONDS = 600.0
"""Time that a server is kept warm without a lease."""
RETIRE_SECONDS = 60.0
"""Time that a replaced server has for its existing sessions."""
MAX_SERVERS = 64


class LeaseState(StrEnum):
    QUEUED = "queued"
    GRANTED = "granted"
    FAILED = "failed"
    OVER = "over"


@dataclass(slots=True, eq=False)
class PoolLease:
    """A client's claim to servers: queued, then granted until it is released or its client is gone."""

    package: StoredPackage
    resources: ResourcesSpec
    count: int
    hash_seed: int = 0
    branches: bool = False
    """Servers that record which branches of the package run."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: LeaseState = LeaseState.QUEUED
    servers: list[RunningServer] = field(default_factory=list)
    retiring: dict[RunningServer, float] = field(default_factory=dict)
    """Replaced servers, and when they are ended at the latest."""
    error: str = ""
    expires_at: float = 0.0
    holders: int = 0
    """Open connections that keep it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def renew(self) -> None:
        self.expires_at = time.monotonic() + TTL_SECONDS

    def matches(self, server: RunningServer) -> bool:
        is_alike = server.resources == self.resources and server.hash_seed == self.hash_seed
        is_alike = is_alike and server.branches == self.branches
        return is_alike and server.package.hash == self.package.hash and server.is_alive


@dataclass(slots=True, eq=False)
class ServerPool:
    launcher: ServerLauncher
    max_servers: int
    max_memory_mb: int = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.75) >> 20
    """Most of the machine's memory, which is promised to servers."""
    start_seconds: float = START_SECONDS
    started: set[str] = field(default_factory=set)
    """Hashes of packages that have started once."""
    leases: dict[str, PoolLease] = field(default_factory=dict)
    queue: list[PoolLease] = field(default_factory=list)
    _idle: list[RunningServer] = field(default_factory=list)
    _returning: list[RunningServer] = field(default_factory=list)
    """Returned servers whose health is being checked."""
    _starting: dict[PoolLease, int] = field(default_factory=dict)
    """Number of servers that are being started for a lease."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def live_servers(self) -> list[RunningServer]:
        leased = [server for lease in self.leases.values() for server in (*lease.servers, *lease.retiring)]
        return [*leased, *self._returning, *self._idle]

    # leases

    def request_lease(
        self,
        package: StoredPackage,
        resources: ResourcesSpec,
        count: int,
        *,
        hash_seed: int = 0,
        branches: bool = False,
    ) -> PoolLease:
        """Queue a request for servers. Raises SandboxError for a request that will never fit."""
        if count > self.max_servers or count * resources.memory_mb > self.max_memory_mb:
            raise SandboxError(
                f"{count} servers of {resources.memory_mb} MB will never fit: this env host has room for "
                f"{self.max_servers} servers and {self.max_memory_mb} MB"
            )
        lease = PoolLease(package, resources, count, hash_seed, branches)
        lease.renew()
        self.leases[lease.id] = lease
        self.queue.append(lease)
        self._serve_queue()
        return lease

    async def release(self, lease: PoolLease, failed: frozenset[str] = frozenset(), *, is_trusted: bool = True) -> None:
        self.leases.pop(lease.id, None)
        if lease in self.queue:
            self.queue.remove(lease)
        lease.state = LeaseState.OVER
        lease.changed.set()
        lease.over.set()
        for server in list(lease.retiring):
            await server.stop()

        async def put_back(server: RunningServer) -> None:
            self._returning.append(server)
            try:
                if is_trusted and server.id not in failed and await server.is_healthy():
                    server.idle_since = time.monotonic()
                    self._idle.append(server)
                else:
                    await server.stop()
            finally:
                self._returning.remove(server)

        servers, lease.servers = lease.servers, []
        await asyncio.gather(*map(put_back, servers))
        self._serve_queue()

    async def replace(self, lease: PoolLease, server_id: str) -> RunningServer:
        """A fresh server in place of one that the client found dead or failed."""
        old = next((server for server in lease.servers if server.id == server_id), None)
        if old is None:
            raise SandboxError("this lease has no such server")
        fresh = await self._start(lease)
        if old not in lease.servers or lease.state is not LeaseState.GRANTED:
            await fresh.stop()
            raise SandboxError("the lease ended in the meantime")
        lease.servers[lease.servers.index(old)] = fresh
        lease.retiring[old] = time.monotonic() + RETIRE_SECONDS
        if not old.is_alive:
            await self.retire(lease, old.id)
        return fresh

    async def retire(self, lease: PoolLease, server_id: str) -> None:
        """End a replaced server after its last session."""
        for server in [server for server in lease.retiring if server.id == server_id]:
            del lease.retiring[server]
            await server.stop()

    # the queue

    def _serve_queue(self) -> None:
        """First come, first served: small requests do not overtake a large one forever."""
        while self.queue and self._make_room(self.queue[0]):
            lease = self.queue.pop(0)
            lease.servers = [server for server in reversed(self._idle) if lease.matches(server)][: lease.count]
            self._idle = [server for server in self._idle if server not in lease.servers]
            self._starting[lease] = lease.count - len(lease.servers)
            self._spawn(self._grant(lease))

    def _make_room(self, lease: PoolLease) -> bool:
        """Whether the lease fits now. Ends idle servers of other packages for it, the longest idle first."""
        missing = lease.count - min(lease.count, sum(lease.matches(server) for server in self._idle))
        while missing:
            counts = {**self._starting, lease: missing}
            count = sum(counts.values()) + len(live := self.live_servers())
            memory_mb = sum(number * each.resources.memory_mb for each, number in counts.items())
            memory_mb += sum(server.resources.memory_mb for server in live)
            if count <= self.max_servers and memory_mb <= self.max_memory_mb:
                break
            victim = next((server for server in self._idle if not lease.matches(server)), None)
            if victim is None:
                return False
            self._idle.remove(victim)
            self._spawn(victim.stop())
        return True

    async def _grant(self, lease: PoolLease) -> None:
        tasks: list[asyncio.Task[RunningServer]] = []
        started: list[RunningServer] = []
        try:
            # an idle server may have died or hung in the meantime
            idle = lease.servers
            healthy = await asyncio.gather(*(server.is_healthy() for server in idle))
            hung = [server for server, is_healthy in zip(idle, healthy, strict=True) if not is_healthy]
            lease.servers = [server for server in lease.servers if server not in hung]
            for server in hung:
                await server.stop()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._start(lease)) for _ in range(self._starting[lease] + len(hung))]
            started = [task.result() for task in tasks]
        except* SandboxError as errors:
            for task in tasks:
                if not task.cancelled() and task.exception() is None:
                    await task.result().stop()
            lease.state, lease.error = LeaseState.FAILED, str(errors.exceptions[0])
        finally:
            del self._starting[lease]
        lease.servers += started
        self.started |= {server.package.hash for server in lease.servers}
        if lease.id not in self.leases:  # the client left in the meantime
            await self.release(lease)
        elif lease.state is LeaseState.QUEUED:
            lease.state = LeaseState.GRANTED
        lease.changed.set()
        self._serve_queue()

    async def _start(self, lease: PoolLease) -> RunningServer:
        async with boundary(SandboxError, "start of an environment server"):
            server = await self.launcher.start(
                lease.package,
                lease.resources,
                self.start_seconds,
                hash_seed=lease.hash_seed,
                branches=lease.branches,
            )
        server.hash_seed, server.branches = lease.hash_seed, lease.branches
        if server.uncompiled:
            self._spawn(self.launcher.environments.compile(lease.package, server.uncompiled))
        return server

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # upkeep

    async def run_upkeep(self) -> None:
        """End leases without a client, idle and dead servers, and servers with too much memory, until canceled."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for lease in [each for each in self.leases.values() if not each.holders and each.expires_at < now]:
                await self.release(lease, is_trusted=False)
            for server in [each for each in self._idle if not each.is_alive or now - each.idle_since > IDLE_SECONDS]:
                self._idle.remove(server)
                await server.stop()
            for lease in list(self.leases.values()):
                for server in [server for server, until in lease.retiring.items() if until < now]:
                    await self.retire(lease, server.id)
            for server in self.live_servers():
                server.end_if_too_big()
            await self.launcher.stop_unused()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for lease in list(self.leases.values()):
            await self.release(lease, is_trusted=False)
        await asyncio.gather(*(server.stop() for server in self._idle))
