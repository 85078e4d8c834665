"""The sessions of a leased server: opened when they are needed, used again after an episode that ended well.

A process that died or in which a call timed out gets no new sessions: the env host starts another one in its place,
and the old one ends with its last session.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any

import aiohttp

from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, RolloutError, SandboxError
from workers.environments.leases import HostRefused, Lease, LeaseIsOver
from workers.environments.wire import (
    MAX_FRAME_BYTES,
    DeadlinePassed,
    Observation,
    ServerIsFull,
    ServerIsGone,
    Wire,
    read_schema,
)

CONNECT_SECONDS = 10.0


class EnvSession:
    """One episode at a time on a server. Refuses what the server would take but no episode has."""

    __slots__ = ("_is_running", "_process", "_wire", "failure")

    def __init__(self, process: "_Process", wire: Wire) -> None:
        self._process, self._wire = process, wire
        self._is_running = False
        self.failure: RolloutError | None = None

    async def reset(self, arguments: Mapping[str, Any], *, timeout: float) -> Observation:
        """Begin an episode. Waits, within `timeout`, while other clients hold all sessions of the server."""
        self._is_running = False
        try:
            observation = await self._reset(arguments, time.monotonic() + timeout)
        except RolloutError as error:
            raise await self._note(error) from error
        self._is_running = not observation.done
        return observation

    async def _note(self, error: RolloutError) -> RolloutError:
        """Keep a failure for the end of the session; say why the server is gone, where the host knows."""
        was_late, self.failure = isinstance(self.failure, DeadlinePassed), error
        if was_late:  # that is why this session is over: the server may live
            return error
        if isinstance(error, ServerIsGone) and (why := await self._process.fate()):
            return ServerIsGone(f"{error}; {why}")
        return error

    async def _reset(self, arguments: Mapping[str, Any], deadline: float) -> Observation:
        pause = 0.05
        while True:
            try:
                return await self._wire.reset(arguments, max(0.001, deadline - time.monotonic()))
            except ServerIsFull as error:
                if time.monotonic() + pause > deadline:
                    raise LimitExceeded(f"reset: no free session within the deadline: {error}") from error
            await self._wire.close()
            await asyncio.sleep(pause)
            pause = min(1.0, pause * 2)
            self._wire = await self._process.connect()

    async def step(self, action: Mapping[str, Any], *, timeout: float) -> Observation:
        if not self._is_running:
            raise EnvError("step: the episode has not begun or has ended; reset first")
        try:
            observation = await self._wire.step(action, timeout)
        except ActionRefused:  # the policy's mistake; the episode goes on
            raise
        except RolloutError as error:
            raise await self._note(error) from error
        if observation.done:
            self._is_running = False
        return observation

    async def state(self, *, timeout: float) -> dict[str, Any]:
        """The environment's whole state, which may hold the answer: never for a policy."""
        try:
            return await self._wire.state(timeout)
        except RolloutError as error:
            raise await self._note(error) from error

    @property
    def wire(self) -> Wire:
        return self._wire


class _Process:
    """One server process of a lease, and its idle sockets."""

    def __init__(self, described: dict[str, Any], lease: Lease) -> None:
        self.id: str = described["id"]
        self.sessions: int = described["sessions"]
        self.active = 0
        self.is_worn = False
        """Dead, or a call in it timed out and may still be running."""
        self._idle: list[Wire] = []
        self._lease = lease
        self._columns_from: str | None = described.get("columns_from")
        self._http, self._url = lease.reach(described)

    async def connect(self) -> Wire:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self._http.ws_connect(
                    self._url, max_msg_size=MAX_FRAME_BYTES, compress=0, autoclose=True, autoping=True
                )
        except TimeoutError as error:
            raise ServerIsGone(f"the environment's server took no connection in {CONNECT_SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a hostile answer to the upgrade
            raise ServerIsGone(f"the environment's server cannot be reached: {str(error)[:500]}") from error
        return Wire(socket, self._columns_from)

    async def take(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_open:
                return wire
        return await self.connect()

    async def give(self, session: EnvSession, *, ended_well: bool) -> None:
        if isinstance(session.failure, ServerIsGone | DeadlinePassed):
            self.is_worn = True
        if ended_well and session.failure is None and session.wire.is_open:
            self._idle.append(session.wire)
        else:
            await session.wire.close()

    async def fate(self) -> str:
        return await self._lease.fate(self.id)

    async def close(self) -> None:
        await asyncio.gather(*(wire.close() for wire in self._idle))
        self._idle.clear()
        await self._http.close()


class EnvServer:
    """A leased server: one process or several that act as one."""

    def __init__(self, lease: Lease, servers: list[dict[str, Any]]) -> None:
        self._lease = lease
        self._processes = [_Process(described, lease) for described in servers]
        first = servers[0]
        self.action_schema = read_schema(first["action_schema"])
        self.observation_schema = read_schema(first["observation_schema"])
        self.sessions: int = sum(process.sessions for process in self._processes)
        """Maximum number of concurrent sessions."""
        self._free = asyncio.Semaphore(self.sessions)
        self._replacing = asyncio.Lock()
        self._left = asyncio.Event()
        """Set when sessions of a group end, so that waiting groups check for room again."""

    @property
    def worn(self) -> list[str]:
        """Processes that must not be leased again."""
        return [process.id for process in self._processes if process.is_worn]

    async def __aenter__(self) -> "EnvServer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(process.close() for process in self._processes))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[EnvSession]:
        """A session for an episode, or for several one after the other. Waits for a free one."""
        async with self._free:
            process = await self._least_busy()
            process.active += 1
            try:
                async with self._session_on(process) as session:
                    yield session
            finally:
                process.active -= 1
                await self._retire_if_unused(process)

    @asynccontextmanager
    async def _session_on(self, process: _Process) -> AsyncIterator[EnvSession]:
        try:
            wire = await process.take()
        except SandboxError:
            process.is_worn = True
            raise
        session = EnvSession(process, wire)
        ended_well = False
        try:
            yield session
            ended_well = True
        finally:
            await process.give(session, ended_well=ended_well)

    @asynccontextmanager
    async def sessions_together(self, count: int) -> AsyncIterator[list[EnvSession]]:
        """Sessions of one and the same process, for episodes that are scored together; waits for room in one.

        When one of them fails all are ended, so that nothing waits for it on the server either.
        """
        process = await self._with_room(count)
        process.active += count
        try:
            async with AsyncExitStack() as stack:
                yield [await stack.enter_async_context(self._session_on(process)) for _ in range(count)]
        finally:
            process.active -= count
            self._left.set()
            await self._retire_if_unused(process)

    async def _with_room(self, count: int) -> _Process:
        while True:
            process = await self._least_busy()
            if count > process.sessions:
                raise LimitExceeded(
                    f"{count} episodes of a group are scored together, but a server has {process.sessions} sessions"
                )
            if process.active + count <= process.sessions:
                return process
            self._left.clear()
            await self._left.wait()

    async def _least_busy(self) -> _Process:
        if any(process.is_worn for process in self._processes):
            async with self._replacing:
                await self._replace_worn()
        return min(self._processes, key=lambda process: process.active / process.sessions)

    async def _replace_worn(self) -> None:
        """The first caller does it; the others wait."""
        try:
            for process in [process for process in self._processes if process.is_worn]:
                await self._swap([process], [await self._lease.replace(process.id)])
        except HostRefused as error:
            if not isinstance(error, LeaseIsOver):
                raise
            await self._swap(self._processes, await self._lease.acquire_again())
        except SandboxError:  # the host cannot be reached: it is being started again, and then knows no lease
            await self._swap(self._processes, await self._lease.acquire_again())

    async def _swap(self, old: list[_Process], new: list[dict[str, Any]]) -> None:
        fresh = [_Process(described, self._lease) for described in new]
        self._processes = [process for process in self._processes if process not in old] + fresh
        for process in old:
            await self._retire_if_unused(process)

    async def _retire_if_unused(self, process: _Process) -> None:
        if process.active == 0 and process not in self._processes:
            await process.close()
            await self._lease.retire(process.id)
