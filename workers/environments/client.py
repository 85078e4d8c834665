"""The client of the env host, and the sessions on its servers. Everything outside this package imports this file.

async with EnvHost(settings.envhost_address) as host:
    await host.prepare(content_hash, files)
    async with host.lease(content_hash, manifest.proctor.resources) as server, server.session() as session:
        observation = await session.reset(task.reset_arguments(), timeout=10)

The env host ends a lease when the connection that holds it closes and no new one comes within the lease's time to live.
So a client that computes for minutes keeps its servers, and one that died returns them at once.

Sessions are opened on demand and reused after an episode that ended well. A process that died or in which a call timed
out gets no new sessions: the env host starts another one in its place, and the old one ends with its last session.
"""

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import orjson

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import pack
from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, RolloutError, SandboxError
from workers.environments.inside.shared_connection import MAX_FRAME_BYTES, PROTOCOL
from workers.environments.wire import (
    DeadlinePassed,
    JsonObject,
    Observation,
    PlainChannel,
    ServerIsFull,
    ServerIsGone,
    SharedChannel,
    SharedSocket,
    Wire,
    read_schema,
)

__all__ = ["EnvHost", "EnvServer", "EnvSession", "HostRefused", "Observation"]

CONNECT_SECONDS = 10.0
POLL_SECONDS = 20.0
"""Time that one request for a queued lease stays open."""
START_SECONDS = 900.0
"""A package's own virtual environment may have to be built."""


class HostRefused(SandboxError):
    """The env host answered that it cannot do this, and why."""


class LeaseIsOver(HostRefused):
    """The env host does not know this lease: it was restarted, or the lease expired."""


class EnvHost:
    """Talks to the env host process at `unix:/path` or `http://host:port`.

    `is_granted` reports, in a thread, whether an administrator granted network access to a package. Default: none.
    """

    def __init__(self, address: str, token: str = "", *, is_granted: Callable[[str], bool] = lambda _: False) -> None:
        self._is_granted = is_granted
        self._socket_path = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._base = "http://envhost" if self._socket_path else address.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "EnvHost":
        connector = aiohttp.UnixConnector(self._socket_path) if self._socket_path else None
        self._http = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def status(self) -> JsonObject:
        return await self.request("GET", "/status")

    async def prepare(self, content_hash: str, files: Mapping[str, str]) -> None:
        """Make the package ready to serve: upload, virtual environment, a first start. Does nothing the second time.

        Raises HostRefused, with the last lines of the package's log, when it does not start.
        """
        known = await self.request("GET", f"/packages/{content_hash}")
        if not known["is_stored"]:
            await self.request("PUT", f"/packages/{content_hash}", body=pack(files))
        if not known["is_ready"]:
            try:
                async with asyncio.timeout(START_SECONDS), self.lease(content_hash):
                    pass  # the server that it started stays warm for the first lease
            except TimeoutError:
                raise SandboxError(f"the package was not ready within {START_SECONDS:g} s") from None

    async def build_log(self, content_hash: str) -> tuple[str, bool]:
        """pip's output from building the package's virtual environment, and whether it has a separate one."""
        answer = await self.request("GET", f"/packages/{content_hash}?log=1")
        return str(answer.get("log", "")), bool(answer.get("is_own"))

    @asynccontextmanager
    async def lease(
        self,
        content_hash: str,
        resources: ResourcesSpec | None = None,
        *,
        servers: int = 1,
        hash_seed: int = 0,
        branches: bool = False,
    ) -> AsyncIterator["EnvServer"]:
        """One or more servers of a stored package for ourselves; waits in the queue while the host is full.

        `resources`: default: as in the package's manifest. Sets of strings have the same order in all servers with the
        same `hash_seed`. With `branches`, they record which branches of the package run.
        """
        request: JsonObject = {"hash": content_hash, "count": servers, "hash_seed": hash_seed}
        if branches:
            request["branches"] = True
        if resources is not None:
            request["resources"] = resources.model_dump()
        if resources is None or resources.network != "none":
            request["network"] = await asyncio.to_thread(self._is_granted, content_hash)
        server = EnvServer(self, request)
        try:
            server.connect_to(await server.request_lease())
            yield server
        finally:
            await server.release()

    def reach(self, server: JsonObject) -> tuple[aiohttp.ClientSession, str]:
        """A connection pool and a URL for a server's WebSocket: its own socket, or the env host's proxy."""
        if self._socket_path:
            return aiohttp.ClientSession(connector=aiohttp.UnixConnector(server["socket"], limit=0)), "ws://server/ws"
        http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=self._headers)
        return http, f"{self._base}/servers/{server['id']}/ws"

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: JsonObject | None = None,
        body: bytes | None = None,
        seconds: float | None = 15.0,
    ) -> JsonObject:
        """One request to the env host. Raises HostRefused if it refuses, SandboxError if it cannot be reached."""
        if self._http is None:
            raise SandboxError("the env host's client is not open: use `async with EnvHost(...)`")
        data = orjson.dumps(json) if json is not None else body
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.request(method, self._base + path, data=data, timeout=timeout) as response:
                answer = orjson.loads(await response.read())
        except TimeoutError as error:
            raise SandboxError(f"the env host did not answer {method} {path} within {seconds} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"the env host cannot be reached: {error}") from error
        except orjson.JSONDecodeError as error:
            raise SandboxError(f"the env host did not answer {method} {path} with JSON") from error
        if not isinstance(answer, dict):
            raise SandboxError(f"the env host did not answer {method} {path} with a JSON object")
        if response.status >= 400:
            raise (LeaseIsOver if response.status == 410 else HostRefused)(str(answer.get("error", answer)))
        return answer


class _LeasedProcess:
    """One server process of a lease, and its idle sockets."""

    def __init__(self, described: JsonObject, host: "EnvHost") -> None:
        self.id: str = described["id"]
        self.sessions: int = described["sessions"]
        self.active = 0
        self.has_failed = False
        """Dead, or a call in it timed out and may still be running."""
        self._idle: list[Wire] = []
        self._host = host
        self._columns_from: str | None = described.get("columns_from")
        self._protocols = (PROTOCOL,) if described.get("protocol") == PROTOCOL else ()
        self._shared: SharedSocket | None = None
        """The socket of its sessions, where they share one; opened again after it was lost."""
        self._connecting = asyncio.Lock()
        self._http, self._url = host.reach(described)

    async def connect(self) -> Wire:
        """Open a session: on the socket that all share if the server's interpreter offers that, else on a separate one.

        Raises ServerIsGone.
        """
        if not self._protocols:
            return Wire(PlainChannel(await self._open_socket()), self._columns_from)
        async with self._connecting:
            if self._shared is None or not self._shared.is_open:
                socket = await self._open_socket()
                if socket.protocol != PROTOCOL:
                    self._protocols = ()
                    return Wire(PlainChannel(socket), self._columns_from)
                self._shared = SharedSocket(socket)
            return Wire(SharedChannel(self._shared), self._columns_from)

    async def _open_socket(self) -> aiohttp.ClientWebSocketResponse:
        limit, protocols = MAX_FRAME_BYTES, self._protocols
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._http.ws_connect(self._url, protocols=protocols, max_msg_size=limit, compress=0)
        except TimeoutError as error:
            raise ServerIsGone(f"the environment's server took no connection in {CONNECT_SECONDS:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: a hostile answer to the upgrade
            raise ServerIsGone(f"the environment's server cannot be reached: {str(error)[:500]}") from error

    @asynccontextmanager
    async def session(self) -> AsyncIterator["EnvSession"]:
        """A session on an idle socket, or on a new one. The socket is kept if everything ended well."""
        while (wire := self._idle.pop() if self._idle else None) and not wire.is_open:
            pass
        try:
            session = EnvSession(self, wire or await self.connect())
        except SandboxError:
            self.has_failed = True
            raise
        try:
            yield session
            if session.failure is None and session.wire.is_open:
                self._idle.append(session.wire)
        finally:
            if isinstance(session.failure, ServerIsGone | DeadlinePassed):
                self.has_failed = True
            if session.wire not in self._idle:
                await session.wire.close()

    async def exit_reason(self) -> str:
        """Return how the server ended, with the end of its log; empty while it lives or if unknown."""
        try:
            answer = await self._host.request("GET", f"/servers/{self.id}")
        except SandboxError:
            return ""
        return f"the server {answer['exit_reason']}\n{answer['log']}".strip() if answer["exit_reason"] else ""

    async def close(self) -> None:
        if self._shared is None:
            await asyncio.gather(*(wire.close() for wire in self._idle))
        else:
            await self._shared.close()
        self._idle.clear()
        await self._http.close()


ScriptsOf = Callable[[JsonObject], JsonObject]
"""Returns scripted policies, reply by name, for a state."""


@dataclass(slots=True, eq=False)
class EnvSession:
    """One episode at a time on a server. Refuses steps outside of an episode, which the server would accept."""

    _process: _LeasedProcess
    wire: Wire
    scripts_of: ScriptsOf | None = None
    failure: RolloutError | None = None
    _is_running: bool = False

    async def reset(self, arguments: Mapping[str, object], *, timeout: float) -> Observation:
        """Begin an episode. Waits, within `timeout`, while other clients hold all sessions of the server."""
        self._is_running = False
        deadline, pause = time.monotonic() + timeout, 0.05
        try:
            while True:
                try:
                    observation = await self.wire.observe("reset", arguments, max(0.001, deadline - time.monotonic()))
                    break
                except ServerIsFull as error:
                    if time.monotonic() + pause > deadline:
                        raise LimitExceeded(f"reset: no free session within the deadline: {error}") from error
                await self.wire.close()
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
                self.wire = await self._process.connect()
        except RolloutError as error:
            raise await self._recorded(error) from error
        self._is_running = not observation.done
        return observation

    async def step(self, action: Mapping[str, object], *, timeout: float) -> Observation:
        if not self._is_running:
            raise EnvError("step: the episode has not begun or has ended; reset first")
        try:
            observation = await self.wire.observe("step", action, timeout)
        except ActionRefused:  # the policy's mistake; the episode continues
            raise
        except RolloutError as error:
            raise await self._recorded(error) from error
        self._is_running = not observation.done
        return observation

    async def state(self, *, timeout: float) -> JsonObject:
        """The environment's whole state, which may hold the answer: never for a policy."""
        try:
            state = await self.wire.exchange(b'{"type":"state"}', "state", "state", timeout)
        except RolloutError as error:
            raise await self._recorded(error) from error
        if self.scripts_of is None:
            return state
        own = state.get("scripts")
        return {**state, "scripts": {**self.scripts_of(state), **(own if isinstance(own, dict) else {})}}

    async def _recorded(self, error: RolloutError) -> RolloutError:
        """Keep a failure for the end of the session; add why the server is gone, if the host knows."""
        had_timed_out, self.failure = isinstance(self.failure, DeadlinePassed), error
        # after a timeout the session has ended, but the server may live
        if not had_timed_out and isinstance(error, ServerIsGone) and (reason := await self._process.exit_reason()):
            return ServerIsGone(f"{error}; {reason}")
        return error


@dataclass(slots=True, eq=False)
class EnvServer:
    """A leased server of a package: one process or several that act as one."""

    host: EnvHost
    lease_request: JsonObject
    action_schema: JsonObject = field(default_factory=dict)
    observation_schema: JsonObject = field(default_factory=dict)
    sessions: int = 0
    """Maximum number of concurrent sessions."""
    scripts_of: ScriptsOf | None = None
    """Adds scripted policies to the states of new sessions, derived from the answers in them."""
    _path: str = ""
    _heartbeat: asyncio.Task[None] | None = None
    _processes: list[_LeasedProcess] = field(default_factory=list)
    _free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _replacing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _group_ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when sessions of a group end, so that waiting groups check for room again."""

    # the lease

    def connect_to(self, described: list[JsonObject]) -> None:
        self._processes = [_LeasedProcess(each, self.host) for each in described]
        self.action_schema = read_schema(described[0]["action_schema"])
        self.observation_schema = read_schema(described[0]["observation_schema"])
        self.sessions = sum(process.sessions for process in self._processes)
        self._free = asyncio.Semaphore(self.sessions)

    async def release(self) -> None:
        """Return the processes to the pool, except the failed ones."""
        failed = ",".join(process.id for process in self._processes if process.has_failed)
        try:
            await asyncio.gather(*(process.close() for process in self._processes))
        finally:
            if self._path:
                with contextlib.suppress(SandboxError):  # it expires anyway
                    await asyncio.shield(self.host.request("DELETE", f"{self._path}?failed={failed}"))
            await self._stop_heartbeat()

    async def request_lease(self) -> list[JsonObject]:
        """Order the servers; wait in the queue while the host is full. Returns their descriptions."""
        lease = await self.host.request("POST", "/servers", json=self.lease_request)
        self._path = f"/leases/{lease['id']}"
        self._heartbeat = asyncio.create_task(self._hold(self._path))
        while lease["state"] == "queued":
            path = f"{self._path}?wait={POLL_SECONDS:g}"
            lease = await self.host.request("GET", path, seconds=POLL_SECONDS + 15)
        return list(lease["servers"])

    async def _hold(self, path: str) -> None:
        """Keep a connection open as a heartbeat, until canceled or until the lease ends."""
        while True:
            try:
                await self.host.request("GET", f"{path}/hold", seconds=None)
            except LeaseIsOver:
                return
            except SandboxError:
                pass  # the host may come back
            await asyncio.sleep(0.5)

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
            self._heartbeat = None

    async def _lease_again(self) -> list[JsonObject]:
        """After the host lost the lease; waits up to a minute for a host that is being restarted."""
        deadline = time.monotonic() + 60.0
        while True:
            await self._stop_heartbeat()
            try:
                return await self.request_lease()
            except SandboxError as error:
                if isinstance(error, HostRefused) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.5)

    async def read_branches(self) -> bytes:
        """Return a byte for each branch of the package, not 0 if it ran since the last call. Raises SandboxError."""
        try:
            answers = [await self.host.request("GET", f"/servers/{each.id}/branches") for each in self._processes]
            records = [base64.b64decode(str(answer["executed"]), validate=True) for answer in answers]
        except (ValueError, KeyError) as error:
            raise SandboxError("the environment's server sent no record of its branches") from error
        return bytes(map(max, *records)) if len(records) > 1 else records[0]

    # sessions

    @asynccontextmanager
    async def session(self) -> AsyncIterator[EnvSession]:
        """A session for one episode, or for several in sequence. Waits for a free one."""
        async with self._free:
            process = await self._least_busy()
            process.active += 1
            try:
                async with process.session() as session:
                    session.scripts_of = self.scripts_of
                    yield session
            finally:
                process.active -= 1
                await self._retire_if_unused(process)

    @asynccontextmanager
    async def sessions_together(self, count: int) -> AsyncIterator[list[EnvSession]]:
        """Sessions of one and the same process, for episodes that are scored together; waits for room in one.

        When one of them fails all are ended, so that nothing waits for it on the server either.
        """
        while True:
            process = await self._least_busy()
            if count > process.sessions:
                raise LimitExceeded(
                    f"{count} episodes of a group are scored together, but a server has {process.sessions} sessions"
                )
            if process.active + count <= process.sessions:
                break
            self._group_ended.clear()
            await self._group_ended.wait()
        process.active += count
        try:
            async with AsyncExitStack() as stack:
                sessions = [await stack.enter_async_context(process.session()) for _ in range(count)]
                for session in sessions:
                    session.scripts_of = self.scripts_of
                yield sessions
        finally:
            process.active -= count
            self._group_ended.set()
            await self._retire_if_unused(process)

    async def _least_busy(self) -> _LeasedProcess:
        """The process with the most room, after failed ones were replaced. The first caller does that; others wait."""
        if any(process.has_failed for process in self._processes):
            async with self._replacing:
                try:
                    for process in [process for process in self._processes if process.has_failed]:
                        path = f"{self._path}/servers/{process.id}/replace"
                        await self._swap([process], [await self.host.request("POST", path, seconds=START_SECONDS)])
                except SandboxError as error:  # a host that cannot be reached restarts, and then knows no lease
                    if isinstance(error, HostRefused) and not isinstance(error, LeaseIsOver):
                        raise
                    await self._swap(self._processes, await self._lease_again())
        return min(self._processes, key=lambda process: process.active / process.sessions)

    async def _swap(self, old: list[_LeasedProcess], new: list[JsonObject]) -> None:
        """Put fresh processes in place of old ones, which may finish their sessions."""
        fresh = [_LeasedProcess(described, self.host) for described in new]
        self._processes = [process for process in self._processes if process not in old] + fresh
        for process in old:
            await self._retire_if_unused(process)

    async def _retire_if_unused(self, process: _LeasedProcess) -> None:
        if process.active == 0 and process not in self._processes:
            await process.close()
            with contextlib.suppress(SandboxError):  # the host ends it after a while anyway
                await self.host.request("DELETE", f"{self._path}/servers/{process.id}")
