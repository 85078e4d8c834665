"""One running environment server: forked from a warm interpreter, enclosed, listening on a separate socket."""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import orjson

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError
from proctor_sandbox.terms import MOST
from workers.environments.inside.server import CAPACITY_PATH
from workers.environments.logs import LogTail
from workers.environments.memory import descendants, parent, resident_bytes, used_bytes
from workers.environments.packages import StoredPackage
from workers.environments.zygotes import Zygote

START_SECONDS = 60.0
"""How long a package may take to import and to answer for the first time."""
WATCH_SECONDS = 0.5
"""Interval between memory checks of a starting server."""
HEALTH_SECONDS = 5.0
_MEMORY_ALLOWANCE = 1.25
_INTERPRETER_BYTES = 64 << 20
"""The warm one that programs are forked from."""
_REAP_SECONDS = 0.3
"""A connection breaks a moment before its process is reaped."""
_MAX_ANSWER_BYTES = 2_000_000
_TMP_BYTES = 64 << 20
_first_cpus = itertools.count()
_SLACK_BYTES = 64 << 20
_OWN_IMPORTS_MAPPED, _OWN_IMPORTS_RESIDENT = 512 << 20, 160 << 20
"""Of OpenEnv's server and what it needs: seen 120 MB resident, 300 MB mapped."""
_SPARE_THREADS = 64
_SPARE_FILES = 192
_MAX_SOCKET_PATH = 107
_BACKLOG = 1024


class ServerProcess(Protocol):
    """The process behind a server: a forked process, a container, or a relay to an external one."""

    pid: int
    """In the host's numbering; 0 where there is none of ours."""
    exited: asyncio.Event
    code: int | None

    def kill(self) -> None: ...


@dataclass(slots=True, eq=False)
class RunningServer:
    """A server that answered once."""

    id: str
    package: StoredPackage
    resources: ResourcesSpec
    socket: Path
    process: ServerProcess
    log: LogTail
    capacity_path: str = CAPACITY_PATH
    """Also used for health checks."""
    family: int = 0
    """The process above it and above the sibling that runs its programs, where there is one."""
    hash_seed: int = 0
    """Of Python's string hashes in it."""
    sessions: int = 0
    action_schema: dict[str, Any] | None = None
    observation_schema: dict[str, Any] | None = None
    uncompiled: list[str] = field(default_factory=list)
    """Modules that it imported without bytecode from its package's virtual environment, as relative paths."""
    idle_since: float = 0.0
    resident_at_start: int = 0
    """Bytes; the warm interpreter's, which all servers share."""
    ended_why: str = ""
    """Set when the host itself ended it."""

    @property
    def is_alive(self) -> bool:
        return not self.process.exited.is_set()

    def described(self) -> dict[str, Any]:
        """For the client that leases it."""
        return {
            "id": self.id,
            "socket": str(self.socket),
            "sessions": self.sessions,
            "action_schema": self.action_schema,
            "observation_schema": self.observation_schema,
            "columns_from": self.package.columns_from,
        }

    async def fate(self) -> str:
        """What became of it, for a client that lost its connection; empty while it lives."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_SECONDS):
                await self.process.exited.wait()
        if self.is_alive:
            return ""
        return self.ended_why or _said_at_end(self.process.code)

    async def is_healthy(self) -> bool:
        """Does its event loop answer?"""
        if not self.is_alive:
            return False
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await _get(self.socket, self.capacity_path)
        except (TimeoutError, SandboxError):
            return False
        return True

    def end_if_too_big(self) -> None:
        """What RLIMIT_AS cannot see: many processes that are each within it."""
        if not self.is_alive:
            return
        pids = descendants(self.family)[1:] if self.family else descendants(self.process.pid)
        allowed = (self.resources.memory_mb << 20) * _MEMORY_ALLOWANCE + self.resident_at_start
        allowed += _INTERPRETER_BYTES if self.family else 0
        if sum(resident_bytes(pid) for pid in pids) <= allowed:
            return  # the cheap measure, which counts shared pages in each process
        if (used := used_bytes(pids)) > allowed:
            self.ended_why = f"its processes used {used >> 20} MB of {self.resources.memory_mb} MB"
            self.process.kill()

    async def stop(self) -> None:
        self.process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self.process.exited.wait()
        self.log.close()
        shutil.rmtree(self.socket.parent, ignore_errors=True)


async def start_server(
    zygote: Zygote, package: StoredPackage, resources: ResourcesSpec, folder: Path, seconds: float = START_SECONDS
) -> RunningServer:
    """Raises SandboxError with the last lines of its log when it exits, hangs or answers nonsense."""
    name = uuid.uuid4().hex[:12]
    home = folder / name
    home.mkdir(mode=0o700, parents=True)
    (home / "files").mkdir()
    log = LogTail()
    path = home / "s"
    listener = listen(path)
    zipped = os.open(package.path, os.O_RDONLY)
    request = _request(zygote, package, resources, home)
    try:
        process = await zygote.fork(name, request, [listener.fileno(), zipped, log.writer])
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    finally:
        listener.close()  # so that a connection fails, instead of waiting, once the server is dead
        os.close(zipped)
        log.handed_over()
    server = RunningServer(name, package, resources, path, process, log)
    server.resident_at_start = resident_bytes(process.pid) + _own_imports(zygote)[1]
    if resources.execute and zygote.is_jailed:
        server.family = parent(process.pid)
    await begin_serving(server, seconds)
    return server


async def begin_serving(server: RunningServer, seconds: float) -> None:
    """Returns when it has answered; a server that does not is ended. Raises SandboxError."""
    try:
        await _wait_until_it_answers(server, seconds)
    except BaseException:
        await server.stop()
        raise


def listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise SandboxError(f"the data folder's path is too long for a socket: {path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener


def _request(zygote: Zygote, package: StoredPackage, resources: ResourcesSpec, home: Path) -> dict[str, Any]:
    threads = resources.sessions + _SPARE_THREADS
    stacks = threads << 20
    cpus = {"cpus": max(1, round(resources.cpus)), "first_cpu": next(_first_cpus)}
    return {
        "name": package.name,
        "app": package.app,
        "sessions": resources.sessions,
        "variables": {"MAX_CONCURRENT_ENVS": str(resources.sessions), **zygote.variables, **package.variables},
        "folder": "" if zygote.is_jailed else str(home / "files"),
        "limits": {
            "memory_bytes": (resources.memory_mb << 20) + stacks + _SLACK_BYTES + _own_imports(zygote)[0],
            "tmp_bytes": _TMP_BYTES,
            "threads": threads,
            "files": resources.sessions + _SPARE_FILES,
            **cpus,
        },
        "execute": {**cpus, **_executions(resources)} if resources.execute else None,
    }


def _own_imports(zygote: Zygote) -> tuple[int, int]:
    """Address space and memory, in bytes, of imports that other servers get from the warm interpreter."""
    return (_OWN_IMPORTS_MAPPED, _OWN_IMPORTS_RESIDENT) if zygote.stands_alone else (0, 0)


def _executions(resources: ResourcesSpec) -> dict[str, Any]:
    """What its programs may use: as many at a time as keep its cores busy, and none more memory than the server."""
    bounds = replace(MOST, memory_mb=min(resources.memory_mb, MOST.memory_mb))
    return {"parallel": 2 * max(1, round(resources.cpus)), "bounds": asdict(bounds)}


async def _wait_until_it_answers(server: RunningServer, seconds: float) -> None:
    """The socket listens already, so that the first question waits inside it for the server."""
    asked = asyncio.create_task(_introduce(server))
    ended = asyncio.create_task(server.process.exited.wait())
    try:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.wait({asked, ended}, timeout=min(left, WATCH_SECONDS), return_when=asyncio.FIRST_COMPLETED)
            if asked.done() or ended.done():
                break
            server.end_if_too_big()  # the pool does not watch it yet
        if asked.done() and asked.exception() is None:
            return
        if not ended.done():
            await asyncio.wait({ended}, timeout=_REAP_SECONDS)
        await asyncio.sleep(0.05)  # its last words
        raise SandboxError(_why_no_start(server, asked, seconds, is_over=ended.done()))
    finally:
        for task in (asked, ended):
            task.cancel()
        await asyncio.gather(asked, ended, return_exceptions=True)


async def _introduce(server: RunningServer) -> None:
    """Read the schemas and the number of sessions."""
    while not server.socket.exists():
        await asyncio.sleep(0.05)
    schema = await _get(server.socket, "/schema")
    capacity = {"sessions": server.resources.sessions} | await _get(server.socket, server.capacity_path)
    server.action_schema = _object(schema.get("action"), "/schema: action")
    server.observation_schema = _object(schema.get("observation"), "/schema: observation")
    if not isinstance(capacity["sessions"], int):
        raise SandboxError(f"GET {server.capacity_path} answered with sessions that are no number")
    server.sessions = max(1, min(capacity["sessions"], server.resources.sessions))
    uncompiled = capacity.get("uncompiled")
    server.uncompiled = [str(name) for name in uncompiled] if isinstance(uncompiled, list) else []


def _object(value: Any, what: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise SandboxError(f"GET {what} is not an object")
    return value or {}


def _said_at_end(code: int | None) -> str:
    if code is None:
        return "is gone"
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _why_no_start(server: RunningServer, asked: "asyncio.Task[None]", seconds: float, *, is_over: bool) -> str:
    if server.ended_why:
        told = f"the package's server was ended while it started: {server.ended_why}"
    elif is_over:
        told = f"the package's server {_said_at_end(server.process.code)} while it started"
    elif asked.done():
        told = f"the package's server does not speak OpenEnv: {asked.exception()}"
    else:
        told = f"the package's server did not answer within {seconds:g} s of its start"
    server.log.close()
    return f"{told}\n{server.log.last_lines()}".strip()


async def _whole(content: aiohttp.StreamReader) -> bytes:
    """A single read would give what has arrived by then. Raises SandboxError for what is too much."""
    body = bytearray()
    async for part in content.iter_any():
        body += part
        if len(body) > _MAX_ANSWER_BYTES:
            raise SandboxError(f"it answers with more than {_MAX_ANSWER_BYTES:,} bytes")
    return bytes(body)


async def _get(path: Path, url: str) -> dict[str, Any]:
    """An object that the server answers with. Nothing is unpacked, followed or kept for it. Raises SandboxError."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(path)), cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as http,
            http.get(
                f"http://server{url}",
                headers={"Accept-Encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=None),
                allow_redirects=False,
            ) as response,
        ):
            body = await _whole(response.content)
            if response.status != 200:
                raise SandboxError(f"GET {url} answered {response.status}: {body[:200].decode(errors='replace')}")
            answer = orjson.loads(body)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SandboxError(f"GET {url}: {type(error).__name__}: {error}") from error
    if not isinstance(answer, dict):
        raise SandboxError(f"GET {url} did not answer with an object")
    return answer
