"""Who has which server: leases, the queue for capacity, idle servers kept warm for the next lease."""

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError, boundary
from workers.environments.granted_leases import Lease, LeaseState
from workers.environments.packages import StoredPackage
from workers.environments.runtimes import Runtimes
from workers.environments.servers import START_SECONDS, RunningServer
from workers.environments.starting import Starter

IDLE_SECONDS = 600.0
"""How long a server is kept warm without a lease."""
RETIRE_SECONDS = 60.0
"""How long a replaced server may continue its existing sessions."""
MAX_SERVERS = 64
MEMORY_SHARE = 0.75
"""Of the machine's memory, at most, is promised to servers."""
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Capacity:
    servers: int
    memory_mb: int

    @staticmethod
    def of_this_machine(servers: int = MAX_SERVERS) -> "Capacity":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Capacity(servers, int(total * MEMORY_SHARE) >> 20)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this host."""

    capacity: Capacity
    start_seconds: float = START_SECONDS


class Pool:
    def __init__(self, runtimes: Runtimes, starter: Starter, limits: Limits) -> None:
        self._runtimes, self._starter = runtimes, starter
        self._capacity, self._start_seconds = limits.capacity, limits.start_seconds
        self._leases: dict[str, Lease] = {}
        self._queue: list[Lease] = []
        self._idle: list[RunningServer] = []
        self._returning: list[RunningServer] = []
        """Returned servers whose health is being checked."""
        self._starting_count = self._starting_mb = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def build_log(self, package: StoredPackage) -> dict[str, Any]:
        """pip's output from the package's virtual environment; empty if it uses the shared runtime."""
        environments = self._runtimes.environments
        return {"log": environments.log_of(package), "is_own": bool(environments.key_of(package))}

    def packages_in_use(self) -> set[str]:
        """Hashes of packages that have servers or wait for some."""
        leased = {lease.package.hash for lease in self._leases.values()}
        return leased | {server.package.hash for server in self._live()}

    # leases

    def order(self, package: StoredPackage, resources: ResourcesSpec, count: int, *, hash_seed: int = 0) -> Lease:
        """A place in the queue. Raises SandboxError for what will never fit."""
        lease = Lease(package, resources, count, hash_seed)
        if count > self._capacity.servers or lease.memory_mb > self._capacity.memory_mb:
            raise SandboxError(
                f"{count} servers of {resources.memory_mb} MB will never fit: this env host has room for "
                f"{self._capacity.servers} servers and {self._capacity.memory_mb} MB"
            )
        lease.renew()
        self._leases[lease.id] = lease
        self._queue.append(lease)
        self._serve_queue()
        return lease

    def find(self, lease_id: str) -> Lease | None:
        return self._leases.get(lease_id)

    async def release(self, lease: Lease, worn: frozenset[str] = frozenset(), *, is_trusted: bool = True) -> None:
        """Mark the servers idle; end worn, dead and hung ones."""
        self._leases.pop(lease.id, None)
        if lease in self._queue:
            self._queue.remove(lease)
        lease.become(LeaseState.OVER)
        for server in [server for server, _ in lease.retiring.values()]:
            await server.stop()
        servers, lease.servers = lease.servers, []
        await asyncio.gather(*(self._put_back(server, is_trusted and server.id not in worn) for server in servers))
        self._serve_queue()

    async def _put_back(self, server: RunningServer, is_usable: bool) -> None:
        self._returning.append(server)
        try:
            if is_usable and await server.is_healthy():
                server.idle_since = time.monotonic()
                self._idle.append(server)
            else:
                await server.stop()
        finally:
            self._returning.remove(server)

    async def replace(self, lease: Lease, server_id: str) -> RunningServer:
        """A fresh server in the place of one that the client found dead or worn."""
        old = next((server for server in lease.servers if server.id == server_id), None)
        if old is None:
            raise SandboxError("this lease has no such server")
        fresh = await self._start(lease)
        if old not in lease.servers or lease.state is not LeaseState.GRANTED:
            await fresh.stop()
            raise SandboxError("the lease ended in the meantime")
        lease.servers[lease.servers.index(old)] = fresh
        lease.retiring[old.id] = (old, time.monotonic() + RETIRE_SECONDS)
        if not old.is_alive:
            await self.retire(lease, old.id)
        return fresh

    async def retire(self, lease: Lease, server_id: str) -> None:
        """A replaced server has ended its last session."""
        if entry := lease.retiring.pop(server_id, None):
            await entry[0].stop()

    # the queue

    def _serve_queue(self) -> None:
        """First come, first served: small requests do not overtake a large one forever."""
        while self._queue and self._fits(self._queue[0]):
            lease = self._queue.pop(0)
            lease.servers = self._take_idle(lease)
            missing = lease.count - len(lease.servers)
            self._starting_count += missing
            self._starting_mb += missing * lease.resources.memory_mb
            self._spawn(self._grant(lease, missing))

    def _fits(self, lease: Lease) -> bool:
        matching = min(lease.count, sum(self._matches(server, lease) for server in self._idle))
        missing = lease.count - matching
        while missing and not self._has_room(missing, missing * lease.resources.memory_mb):
            victim = next((server for server in self._idle if not self._matches(server, lease)), None)
            if victim is None:
                return False
            self._idle.remove(victim)  # the one that is idle longest
            self._spawn(victim.stop())
        return True

    def _has_room(self, count: int, memory_mb: int) -> bool:
        live = self._live()
        used_mb = sum(server.resources.memory_mb for server in live) + self._starting_mb
        return (
            len(live) + self._starting_count + count <= self._capacity.servers
            and used_mb + memory_mb <= self._capacity.memory_mb
        )

    def _live(self) -> list[RunningServer]:
        leased = [server for lease in self._leases.values() for server in lease.servers]
        retiring = [entry[0] for lease in self._leases.values() for entry in lease.retiring.values()]
        return [*leased, *retiring, *self._returning, *self._idle]

    @staticmethod
    def _matches(server: RunningServer, lease: Lease) -> bool:
        is_alike = server.resources == lease.resources and server.hash_seed == lease.hash_seed
        return is_alike and server.package.hash == lease.package.hash and server.is_alive

    def _take_idle(self, lease: Lease) -> list[RunningServer]:
        taken = [server for server in reversed(self._idle) if self._matches(server, lease)][: lease.count]
        for server in taken:
            self._idle.remove(server)
        return taken

    async def _grant(self, lease: Lease, reserved: int) -> None:
        missing = reserved
        tasks: list[asyncio.Task[RunningServer]] = []
        try:
            missing += await self._drop_hung(lease)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._start(lease)) for _ in range(missing)]
            started = [task.result() for task in tasks]
        except* SandboxError as errors:
            for task in tasks:
                if not task.cancelled() and task.exception() is None:
                    await task.result().stop()
            lease.become(LeaseState.FAILED, str(errors.exceptions[0]))
            started = []
        finally:
            self._starting_count -= reserved
            self._starting_mb -= reserved * lease.resources.memory_mb
        lease.servers += started
        if lease.id not in self._leases:  # the client left while we were at it
            await self.release(lease)
        elif lease.state is LeaseState.QUEUED:
            lease.become(LeaseState.GRANTED)
        self._serve_queue()

    async def _drop_hung(self, lease: Lease) -> int:
        """An idle server may have died or hung in the meantime."""
        healthy = await asyncio.gather(*(server.is_healthy() for server in lease.servers))
        hung = [server for server, is_healthy in zip(lease.servers, healthy, strict=True) if not is_healthy]
        lease.servers = [server for server in lease.servers if server not in hung]
        for server in hung:
            await server.stop()
        return len(hung)

    async def _start(self, lease: Lease) -> RunningServer:
        async with boundary(SandboxError, "start of an environment server"):
            server = await self._starter.start(
                lease.package, lease.resources, self._start_seconds, hash_seed=lease.hash_seed
            )
        server.hash_seed = lease.hash_seed
        if server.uncompiled:
            self._spawn(self._runtimes.environments.compile(lease.package, server.uncompiled))
        return server

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # upkeep

    async def keep_house(self) -> None:
        """Until cancelled: end leases without a client, idle and dead servers, and what uses too much memory."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for lease in [lease for lease in self._leases.values() if lease.has_lapsed(now)]:
                await self.release(lease, is_trusted=False)
            for server in [s for s in self._idle if not s.is_alive or now - s.idle_since > IDLE_SECONDS]:
                self._idle.remove(server)
                await server.stop()
            for lease in list(self._leases.values()):
                for server_id in [key for key, (_, until) in lease.retiring.items() if until < now]:
                    await self.retire(lease, server_id)
            for server in self._live():
                server.end_if_too_big()
            await self._runtimes.stop_unused()

    def describe(self) -> dict[str, Any]:
        leased = {server.id for lease in self._leases.values() for server in lease.servers}
        return {
            "capacity": {"servers": self._capacity.servers, "memory_mb": self._capacity.memory_mb},
            "servers": [
                {
                    "id": server.id,
                    "package": server.package.name,
                    "hash": server.package.hash,
                    "sessions": server.sessions,
                    "memory_mb": server.resources.memory_mb,
                    "is_leased": server.id in leased,
                    "printed_bytes": server.log.total_bytes,
                }
                for server in self._live()
            ],
            "queued": len(self._queue),
        }

    def find_server(self, server_id: str) -> RunningServer | None:
        """Return a leased server; idle ones are not accessible."""
        for lease in self._leases.values():
            for server in [*lease.servers, *(entry[0] for entry in lease.retiring.values())]:
                if server.id == server_id:
                    return server
        return None

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for lease in list(self._leases.values()):
            await self.release(lease, is_trusted=False)
        await asyncio.gather(*(server.stop() for server in self._idle))
