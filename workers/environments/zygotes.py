"""The host's side of a warm interpreter (`inside/zygote.py`): start it, have it fork servers, hear of their ends."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from backend.domain.errors import SandboxError
from backend.settings import PROJECT_ROOT
from workers.environments.inside.jail import FLAGS, place_of
from workers.environments.logs import LogTail
from workers.environments.memory import parent

log = structlog.get_logger("envhost")

WARM_UP_SECONDS = 120.0
"""Importing `openenv` takes 3 to 6 seconds, and far longer on a busy machine with a cold disk."""
FORK_SECONDS = 30.0

MAX_MESSAGE_BYTES = 1024
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from workers.environments.inside.{} import main; "
    "sys.path.pop(0); main(sys.argv[1:])"
)
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),  # no threads before the fork
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
}
_CREDENTIALS = struct.Struct("3i")


def command(runtime_python: Path, ring: Mapping[str, Any], module: str, *arguments: str) -> list[str]:
    """Starts `module` of `inside/` in a new outer ring, in the shared runtime's own interpreter.

    `ring`: new_root, site_packages, uid, and where wanted network and compiler. No interpreter, setting or start-up
    file of another environment has a part in this.
    """
    code = _START.format("start")
    return [str(runtime_python), *FLAGS, "-c", code, str(PROJECT_ROOT), module, json.dumps(ring), *arguments]


def site_packages_of(runtime_python: Path) -> Path:
    """Site-packages of the interpreter's environment. Raises SandboxError."""
    home = runtime_python.absolute().parent.parent.resolve()
    found = sorted(home.glob("lib/python*/site-packages"))
    if not found:
        raise SandboxError("the environment runtime is incomplete: run `make setup`")
    return found[0]


class Breach(ValueError):
    """The interpreter sent a message that the protocol does not allow."""


@dataclass(slots=True, eq=False)
class ForkedProcess:
    """A process that a zygote forked, as the host sees it."""

    id: str
    pid: int = 0
    """In the host's numbering; 0 until it has started."""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    """Its exit code; negative: the signal that ended it."""
    is_abandoned: bool = False
    """Kill it as soon as it starts."""
    _handle: int = -1
    """A pidfd: the process itself, even if its number is used again."""

    def begin(self, pid: int, handle: int) -> None:
        self.pid, self._handle = pid, handle
        self.started.set()
        if self.is_abandoned:
            self.kill()

    def end(self, code: int) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self.code = code
        self.exited.set()
        self.started.set()

    def kill(self) -> None:
        self.is_abandoned = True
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


class Zygote:
    """One warm interpreter: of the shared runtime, and of one environment on top of it or alone."""

    def __init__(
        self,
        runtime_python: Path,
        site_packages: Sequence[Path] = (),
        *,
        is_jailed: bool,
        new_root: Path,
        uid: int,
        has_network: bool = False,
        hash_seed: int = 0,
    ) -> None:
        """`site_packages`: a package's own folder, then the shared runtime's where it sees that; none: only that."""
        self._python, self._site_packages = runtime_python.absolute(), list(site_packages)
        self._is_jailed, self._new_root, self._uid = is_jailed, new_root, uid
        self._has_network, self._hash_seed = has_network, hash_seed
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._forks: dict[str, ForkedProcess] = {}
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self.stands_alone = False
        """Its servers import what serves them themselves."""
        self.breach = ""
        """Why the host ended it; empty if it did not."""
        self.log: LogTail | None = None

    @property
    def is_jailed(self) -> bool:
        return self._is_jailed

    @property
    def variables(self) -> dict[str, str]:
        """For interpreters that a server starts: in the jail its virtual environment leads them, elsewhere this."""
        is_led = self._is_jailed or not self._site_packages
        return {} if is_led else {"PYTHONPATH": os.pathsep.join(map(str, self._site_packages))}

    @property
    def is_alive(self) -> bool:
        return self._ready.is_set() and not self._ended.is_set()

    @property
    def has_forks(self) -> bool:
        return bool(self._forks)

    async def start(self) -> None:
        """Returns when it is warm. Raises SandboxError with what it printed."""
        start = self._command()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel tells us pids in our numbering
        self._new_root.mkdir(parents=True, exist_ok=True)
        self.log = LogTail()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *start(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self.log.writer,
                stderr=self.log.writer,
                env=_ENVIRONMENT | {"PYTHONHASHSEED": str(self._hash_seed)},
                start_new_session=True,
            )
        self.log.handed_over()
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        await self._wait_until_warm()

    def _command(self) -> Callable[[int], list[str]]:
        """How it is started, by its descriptor of the control socket."""
        runtime = site_packages_of(self._python)
        seen = self._site_packages or [runtime]
        on_runtime = [path.resolve() == runtime for path in seen]
        self.stands_alone = not any(on_runtime)
        mounted = [str(runtime if is_runtime else path) for path, is_runtime in zip(seen, on_runtime, strict=True)]
        places = [place_of(number) for number in range(len(seen))] if self._is_jailed else mounted
        below = next((place for place, is_runtime in zip(places, on_runtime, strict=True) if is_runtime), "")
        own = {"jail": self._is_jailed, "network": self._has_network, "places": places, "runtime": below}
        ring = {
            "new_root": str(self._new_root),
            "site_packages": mounted,
            "uid": self._uid,
            "network": self._has_network,
        }

        def build(control: int) -> list[str]:
            if self._is_jailed:
                return command(self._python, ring, "zygote", str(control), json.dumps(own))
            code = _START.format("zygote")
            return [str(self._python), *FLAGS, "-c", code, str(PROJECT_ROOT), str(control), json.dumps(own)]

        return build

    async def _wait_until_warm(self) -> None:
        ready, ended = asyncio.create_task(self._ready.wait()), asyncio.create_task(self._ended.wait())
        await asyncio.wait({ready, ended}, timeout=WARM_UP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        ended.cancel()
        if not self.is_alive:
            await asyncio.sleep(0.05)  # its last words
            said = self.log.last_lines() if self.log else ""
            await self.stop()
            why = self.breach or "the environment runtime did not start:"
            raise SandboxError(f"{why}\n{said}".strip())

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, ancillary, flags, _ = self._control.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary, flags = b"", [], 0
        if not data:
            self._over()
            return
        try:
            if flags & socket.MSG_TRUNC:
                raise Breach("a message is too long")
            self._obey(data, ancillary)
        except Breach as error:
            self.end_for(f"the environment's interpreter broke its protocol: {error}")

    def _obey(self, data: bytes, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        """Handle one message. Each is valid at most once per request of the host, which rules out floods."""
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            raise Breach("a message is not JSON") from None
        match message:
            case {"event": "ready", **rest} if not rest and not self._ready.is_set():
                self._ready.set()
            case {"event": "started", "id": str(name), **rest} if not rest:
                self._has_started(name, _pid(ancillary))
            case {"event": "exited", "id": str(name), "code": int(code), **rest} if not rest and -64 <= code <= 255:
                self._has_exited(name, code)
            case _:
                raise Breach("a message is unknown or repeated")

    def _has_started(self, name: str, pid: int) -> None:
        fork = self._forks.get(name)
        if fork is None or fork.pid:
            raise Breach("it reported the start of a process that was not requested")
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return  # it has ended already; the next message reports that
        if not self._came_from_us(pid):
            os.close(handle)
            raise Breach("it reported the start of a process that is not its own")
        fork.begin(pid, handle)

    def _came_from_us(self, pid: int) -> bool:
        assert self._process is not None
        while pid > 1:
            if pid == self._process.pid:
                return True
            pid = parent(pid)
        return False

    def _has_exited(self, name: str, code: int) -> None:
        fork = self._forks.pop(name, None)
        if fork is None:
            raise Breach("it reported the end of a process that was not requested")
        fork.end(128 - code if code > 128 else code)

    def end_for(self, reason: str) -> None:
        """End it, and all that came from it, at once."""
        self.breach = self.breach or reason
        log.error("a warm interpreter is ended", reason=reason)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._over()

    def _over(self) -> None:
        """The zygote has ended, and with it everything that it forked."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        self._ended.set()
        for name in list(self._forks):
            self._has_exited(name, -int(signal.SIGKILL))

    async def fork(self, name: str, request: dict[str, Any], descriptors: list[int]) -> ForkedProcess:
        """Fork a server; returns when it is enclosed. `descriptors`: listening socket, package, log."""
        if self._control is None:
            raise SandboxError(self.breach or "the environment runtime has ended")
        forked = self._forks[name] = ForkedProcess(name)
        socket.send_fds(self._control, [json.dumps({"id": name, **request}).encode()], descriptors)
        try:
            async with asyncio.timeout(FORK_SECONDS):
                await forked.started.wait()
        except TimeoutError:
            forked.kill()
            raise SandboxError("the sandbox could not be made in time") from None
        except asyncio.CancelledError:
            forked.kill()
            raise
        return forked

    async def stop(self) -> None:
        """End it and all its servers."""
        self._over()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self.log is not None:
            self.log.close()


def _pid(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0])
    raise Breach("a message has no sender")


IS_SUPPORTED = sys.platform == "linux"
