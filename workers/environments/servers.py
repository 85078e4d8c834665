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

import aiohttp
import orjson

from backend.core.outgoing.client import read_body
from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError
from proctor_sandbox.memory import descendants
from proctor_sandbox.terms import MOST
from workers.commands import resident_bytes, used_bytes
from workers.environments.inside.server import CAPACITY_PATH
from workers.environments.inside.shared_connection import PROTOCOL
from workers.environments.packages import StoredPackage
from workers.environments.processes import LogTail, ServerProcess, parent
from workers.environments.wire import JsonObject
from workers.environments.zygotes import Zygote

START_SECONDS = 60.0
"""Time limit for importing a package and its first answer."""
_REAP_SECONDS = 0.3
"""A connection breaks a moment before its process is reaped."""
_first_cpus = itertools.count()


@dataclass(slots=True, eq=False)
class RunningServer:
    id: str
    package: StoredPackage
    resources: ResourcesSpec
    socket: Path
    process: ServerProcess
    log: LogTail
    capacity_path: str = CAPACITY_PATH
    """Also used for health checks."""
    family: int = 0
    """The process above it and above the sibling that runs its programs, if there is one."""
    hash_seed: int = 0
    """Seed of Python's string hashes."""
    branches: bool = False
    """It records which branches of the package run."""
    sessions: int = 0
    protocol: str = ""
    """The WebSocket subprotocol by which sessions share a connection, if it speaks it."""
    action_schema: JsonObject | None = None
    observation_schema: JsonObject | None = None
    uncompiled: list[str] = field(default_factory=list)
    """Modules that it imported without bytecode from its package's virtual environment, as relative paths."""
    idle_since: float = 0.0
    resident_at_start: int = 0
    """Bytes; the warm interpreter's, which all servers share."""
    kill_reason: str = ""
    """Set when the host itself ended it."""

    @property
    def is_alive(self) -> bool:
        return not self.process.exited.is_set()

    def describe(self) -> JsonObject:
        """Describe it for the client that leases it."""
        return {
            "id": self.id,
            "socket": str(self.socket),
            "sessions": self.sessions,
            "action_schema": self.action_schema,
            "observation_schema": self.observation_schema,
            "columns_from": self.package.columns_from,
            "protocol": self.protocol,
        }

    async def exit_reason(self) -> str:
        """Return how it ended, for a client that lost its connection; empty while it lives."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.exited.wait(), _REAP_SECONDS)
        if self.is_alive:
            return ""
        code = self.process.code
        if self.kill_reason or code is None:
            return self.kill_reason or "is gone"
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    async def is_healthy(self) -> bool:
        with contextlib.suppress(TimeoutError, SandboxError):
            await asyncio.wait_for(get_object(self.socket, self.capacity_path), 5.0)
            return self.is_alive
        return False

    def end_if_too_big(self) -> None:
        """Catch what RLIMIT_AS cannot: many processes that are each within it."""
        if not self.is_alive:
            return
        allowed = (self.resources.memory_mb * 5 << 18) + self.resident_at_start  # a quarter more than was requested
        if self.family:
            pids = descendants(self.family)[1:]
            allowed += 64 << 20  # the warm interpreter that programs are forked from
        else:  # a container has no process of ours
            pids = descendants(self.process.pid) if self.process.pid else []
        if (used := used_bytes(pids, allowed)) > allowed:
            self.kill_reason = f"its processes used {used >> 20} MB of {self.resources.memory_mb} MB"
            self.process.kill()

    async def stop(self) -> None:
        self.process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.process.exited.wait(), 5)
        self.log.close()
        shutil.rmtree(self.socket.parent, ignore_errors=True)


async def start_server(
    zygote: Zygote,
    package: StoredPackage,
    resources: ResourcesSpec,
    folder: Path,
    seconds: float = START_SECONDS,
    *,
    branches: bool = False,
) -> RunningServer:
    """Fork a server. Raises SandboxError with the last lines of its log if it exits, hangs or answers nonsense."""
    name = uuid.uuid4().hex[:12]
    home, path = folder / name, folder / name / "s"
    home.mkdir(mode=0o700, parents=True)
    (home / "files").mkdir()
    threads = resources.sessions + 64
    # Bytes of OpenEnv's server and its imports, which standalone servers do not get from the warm interpreter: 120 MB
    # resident, 300 MB mapped were measured.
    mapped, resident = (512 << 20, 160 << 20) if zygote.is_standalone else (0, 0)
    variables = {"MAX_CONCURRENT_ENVS": str(resources.sessions)}
    if zygote.site_packages and not zygote.is_jailed:  # for its own subprocesses; in the jail they find these anyway
        variables["PYTHONPATH"] = os.pathsep.join(map(str, zygote.site_packages))
    cpus = {"cpus": max(1, round(resources.cpus)), "first_cpu": next(_first_cpus)}
    memory_bytes = (resources.memory_mb + threads + 64 << 20) + mapped
    files = resources.sessions + 192
    request: dict[str, object] = {
        "name": package.name,
        "app": package.app,
        "sessions": resources.sessions,
        "variables": variables | package.variables,
        "folder": "" if zygote.is_jailed else str(home / "files"),
        "limits": {"memory_bytes": memory_bytes, "tmp_bytes": 64 << 20, "threads": threads, "files": files, **cpus},
        "execute": None,
        "branches": branches,
    }
    if resources.execute:  # as many programs at a time as keep its cores busy, none with more memory than the server
        bounds = asdict(replace(MOST, memory_mb=min(resources.memory_mb, MOST.memory_mb)))
        request["execute"] = {**cpus, "parallel": 2 * cpus["cpus"], "bounds": bounds}
    log, listener = LogTail(), listen(path)
    zipped = os.open(package.path, os.O_RDONLY)
    try:
        process = await zygote.fork(name, request, [listener.fileno(), zipped, log.writer])
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    finally:
        listener.close()  # so that a connection fails, instead of waiting, once the server is dead
        os.close(zipped)
        os.close(log.writer)
    server = RunningServer(name, package, resources, path, process, log)
    server.resident_at_start = resident_bytes(process.pid) + resident
    if resources.execute and zygote.is_jailed:
        server.family = parent(process.pid)
    await wait_until_serving(server, seconds)
    return server


def listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > 107:
        raise SandboxError(f"the data folder's path is too long for a socket: {path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(1024)
    return listener


async def wait_until_serving(server: RunningServer, seconds: float) -> None:
    """Return when it has answered; a server that does not is ended. Raises SandboxError.

    The socket listens already, so that the first request waits inside it for the server.
    """
    introduced = asyncio.create_task(_introduce(server))
    ended = asyncio.create_task(server.process.exited.wait())
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            first = asyncio.FIRST_COMPLETED
            if (await asyncio.wait({introduced, ended}, timeout=min(left, 0.5), return_when=first))[0]:
                break
            server.end_if_too_big()  # the pool does not watch it yet
        if introduced.done() and introduced.exception() is None:
            return
        if not ended.done():
            await asyncio.wait({ended}, timeout=_REAP_SECONDS)
        await asyncio.sleep(0.05)  # its last words
        if server.kill_reason:
            problem = f"was ended while it started: {server.kill_reason}"
        elif ended.done():
            problem = f"{await server.exit_reason()} while it started"
        elif introduced.done():
            problem = f"does not speak OpenEnv: {introduced.exception()}"
        else:
            problem = f"did not answer within {seconds:g} s of its start"
        server.log.close()
        raise SandboxError(f"the package's server {problem}\n{server.log.last_lines()}".strip())
    except BaseException:
        await server.stop()
        raise
    finally:
        for task in (introduced, ended):
            task.cancel()
        await asyncio.gather(introduced, ended, return_exceptions=True)


async def _introduce(server: RunningServer) -> None:
    while not server.socket.exists():
        await asyncio.sleep(0.05)
    schema = await get_object(server.socket, "/schema")
    capacity = {"sessions": server.resources.sessions} | await get_object(server.socket, server.capacity_path)
    for part in ("action", "observation"):
        if not isinstance(schema.get(part), dict | None):
            raise SandboxError(f"GET /schema: {part} is not an object")
    server.action_schema, server.observation_schema = schema.get("action") or {}, schema.get("observation") or {}
    if not isinstance(capacity["sessions"], int):
        raise SandboxError(f"GET {server.capacity_path} answered with sessions that are not a number")
    server.sessions = max(1, min(capacity["sessions"], server.resources.sessions))
    server.protocol = PROTOCOL if str(capacity.get("protocol")) == PROTOCOL else ""
    uncompiled = capacity.get("uncompiled")
    server.uncompiled = [str(name) for name in uncompiled] if isinstance(uncompiled, list) else []


async def get_object(path: Path, url: str) -> JsonObject:
    """The server's answer. Nothing is decompressed, no redirect followed, no cookie kept. Raises SandboxError."""
    http = aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(str(path)),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None),
    )
    try:
        async with http, http.get(f"http://server{url}", allow_redirects=False) as response:
            body = await read_body(response, 2_000_000)
            if response.status != 200:
                raise SandboxError(f"GET {url} answered {response.status}: {body[:200].decode(errors='replace')}")
            answer = orjson.loads(body)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise SandboxError(f"GET {url}: {type(error).__name__}: {error}") from error
    if not isinstance(answer, dict):
        raise SandboxError(f"GET {url} did not answer with an object")
    return answer
