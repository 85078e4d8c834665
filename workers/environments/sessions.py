"""The sessions of a leased server: opened when they are needed, used again after an episode that ended well.

A process that died or in which a call timed out gets no new sessions: the env host starts another one in its place,
and the old one ends with its last session.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol

import aiohttp

from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, RolloutError, SandboxError
from workers.environments.wire import MAX_FRAME_BYTES, Observation, ServerIsFull, ServerIsGone, Wire

CONNECT_SECONDS = 10.0


class Host(Protocol):
    """What sessions need of the env host's client."""

    async def replace(self, lease: str, server: str) -> dict[str, Any]: ...

    async def retire(self, lease: str, server: str) -> None: ...

    async def fate(self, server: str) -> str: ...

    def reach(self, server: Mapping[str, Any]) -> tuple[aiohttp.ClientSession, str]: ...


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
        self.failure = error
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
            raise EnvError("step: the episode has not begun or is over; reset first")
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

    def __init__(self, described: Mapping[str, Any], host: Host) -> None:
        self.id: str = described["id"]
        self.sessions: int = described["sessions"]
        self.active = 0
        self.is_worn = False
        """Dead, or a call in it timed out and may still be running."""
        self._idle: list[Wire] = []
        self._host = host
        self._http, self._url = host.reach(described)

    async def connect(self) -> Wire:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self._http.ws_connect(
                    self._url, max_msg_size=MAX_FRAME_BYTES, compress=0, autoclose=True, autoping=True
                )
        except TimeoutError as error:
            raise ServerIsGone(f"the environment's server took no connection in {CONNECT_SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerIsGone(f"the environment's server cannot be reached: {error}") from error
        return Wire(socket)

    async def take(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_open:
                return wire
        return await self.connect()

    async def give(self, session: EnvSession, *, ended_well: bool) -> None:
        if isinstance(session.failure, ServerIsGone | LimitExceeded):
            self.is_worn = True
        if ended_well and session.failure is None and session.wire.is_open:
            self._idle.append(session.wire)
        else:
            await session.wire.close()

    async def fate(self) -> str:
        """Why it is gone; empty when it is not, or nobody knows."""
        try:
            return await self._host.fate(self.id)
        except SandboxError:
            return ""

    async def close(self) -> None:
        await asyncio.gather(*(wire.close() for wire in self._idle))
        self._idle.clear()
        await self._http.close()


class EnvServer:
    """A leased server: one process or several that act as one."""

    def __init__(self, host: Host, lease: Mapping[str, Any]) -> None:
        self._host, self._lease = host, str(lease["id"])
        self._processes = [_Process(described, host) for described in lease["servers"]]
        first = lease["servers"][0]
        self.action_schema: dict[str, Any] = first["action_schema"]
        self.observation_schema: dict[str, Any] = first["observation_schema"]
        self.sessions: int = sum(process.sessions for process in self._processes)
        """Concurrent sessions that it bears."""
        self._free = asyncio.Semaphore(self.sessions)
        self._replacing = asyncio.Lock()

    @property
    def worn(self) -> list[str]:
        """The processes that nobody should get after us."""
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

    async def _least_busy(self) -> _Process:
        async with self._replacing if any(process.is_worn for process in self._processes) else contextlib.nullcontext():
            for process in [process for process in self._processes if process.is_worn]:
                fresh = _Process(await self._host.replace(self._lease, process.id), self._host)
                self._processes[self._processes.index(process)] = fresh
                await self._retire_if_unused(process)
            return min(self._processes, key=lambda process: process.active / process.sessions)

    async def _retire_if_unused(self, process: _Process) -> None:
        if process.active == 0 and process not in self._processes:
            await process.close()
            with contextlib.suppress(SandboxError):  # the host ends it by itself after a while
                await self._host.retire(self._lease, process.id)
