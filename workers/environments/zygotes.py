"""The host's side of a warm interpreter (`inside/zygote.py`): start it, have it fork servers, learn of their exits."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import structlog

from backend.domain.errors import SandboxError
from backend.settings import PROJECT_ROOT
from workers.environments.inside.jail import FLAGS, place_of
from workers.environments.processes import LogTail, ServerProcess, parent

log = structlog.get_logger("envhost")

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


def jail_command(runtime_python: Path, ring: Mapping[str, object], module: str, *arguments: str) -> list[str]:
    """Command line that runs `module` of `inside/` in a new outer ring, in the shared runtime's own interpreter.

    `ring`: new_root, site_packages, uid, and optionally network and compiler. No interpreter, setting or start-up file
    of another environment takes part in this.
    """
    code = _START.format("jail")
    return [str(runtime_python), *FLAGS, "-c", code, str(PROJECT_ROOT), module, json.dumps(ring), *arguments]


def site_packages_of(runtime_python: Path) -> Path:
    """Site-packages of the interpreter's environment. Raises SandboxError."""
    home = runtime_python.absolute().parent.parent.resolve()
    folders = sorted(home.glob("lib/python*/site-packages"))
    if not folders:
        raise SandboxError("the environment runtime is incomplete: run `make setup`")
    return folders[0]


@dataclass(slots=True, eq=False, kw_only=True)
class ForkedProcess(ServerProcess):
    id: str
    started: asyncio.Event = field(default_factory=asyncio.Event)
    is_abandoned: bool = False
    """Kill it as soon as it starts."""
    handle: int = -1
    """A pidfd: the process itself, even if its number is reused."""

    def kill(self) -> None:
        self.is_abandoned = True
        if self.handle >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class Zygote:
    """One warm interpreter: of the shared runtime, or of one environment on top of it or alone."""

    runtime_python: Path
    site_packages: Sequence[Path] = ()
    """A package's own folder, then the shared runtime's if it sees that. Default: only that."""
    _: KW_ONLY
    is_jailed: bool
    new_root: Path
    uid: int
    has_network: bool = False
    hash_seed: int = 0
    is_standalone: bool = False
    """Its servers import their web server themselves."""
    breach: str = ""
    """Why the host ended it; empty if it did not."""
    log: LogTail | None = None
    forks: dict[str, ForkedProcess] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None
    _control: socket.socket | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is warm, or has ended."""
    _has_ended: bool = False

    @property
    def is_alive(self) -> bool:
        return self._ready.is_set() and not self._has_ended

    async def start(self) -> None:
        """Returns when it is warm. Raises SandboxError with its output."""
        python = self.runtime_python.absolute()
        runtime = site_packages_of(python)
        mounted = [runtime if path.resolve() == runtime else path for path in self.site_packages or [runtime]]
        places = [place_of(number) if self.is_jailed else str(path) for number, path in enumerate(mounted)]
        self.is_standalone = runtime not in mounted
        shared = "" if self.is_standalone else places[mounted.index(runtime)]
        given = {"jail": self.is_jailed, "network": self.has_network, "places": places, "runtime": shared}
        options = json.dumps(given)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel adds pids in our numbering
        descriptor = str(theirs.fileno())
        if self.is_jailed:
            ring: dict[str, object] = {"new_root": str(self.new_root), "uid": self.uid, "network": self.has_network}
            ring["site_packages"] = list(map(str, mounted))
            command = jail_command(python, ring, "zygote", descriptor, options)
        else:
            code = _START.format("zygote")
            command = [str(python), *FLAGS, "-c", code, str(PROJECT_ROOT), descriptor, options]
        self.new_root.mkdir(parents=True, exist_ok=True)
        self.log = LogTail()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self.log.writer,
                stderr=self.log.writer,
                env=_ENVIRONMENT | {"PYTHONHASHSEED": str(self.hash_seed)},
                start_new_session=True,
            )
        os.close(self.log.writer)
        asyncio.get_running_loop().add_reader(self._control, self._receive)
        # importing `openenv` takes 3 to 6 seconds, and far longer on a busy machine with a cold disk
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), 120)
        if not self.is_alive:
            await asyncio.sleep(0.05)  # its last words
            output = self.log.last_lines()
            await self.stop()
            raise SandboxError(f"{self.breach or 'the environment runtime did not start:'}\n{output}".strip())

    def _receive(self) -> None:
        """Handle one message. Each is valid at most once per request of the host, which rules out floods."""
        assert self._control is not None
        try:
            data, ancillary, flags, _ = self._control.recvmsg(1024, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary, flags = b"", [], 0
        if not data:
            self._end()
            return
        try:
            if flags & socket.MSG_TRUNC:
                raise ValueError("a message is too long")
            match json.loads(data):
                case {"event": "ready", **rest} if not rest and not self._ready.is_set():
                    self._ready.set()
                case {"event": "started", "id": str(name), **rest} if not rest:
                    self._has_started(name, ancillary)
                case {"event": "exited", "id": str(name), "code": int(code), **rest} if not rest and -64 <= code <= 255:
                    self._has_exited(name, code)
                case _:
                    raise ValueError("a message is unknown or repeated")
        except (ValueError, RecursionError) as error:
            self.breach = self.breach or f"the environment's interpreter broke its protocol: {error}"
            log.error("a warm interpreter was killed", reason=self.breach)
            self._end()

    def _has_started(self, name: str, ancillary: Sequence[tuple[int, int, bytes]]) -> None:
        """Open a handle on a forked process. Its pid comes from the kernel and has to descend from our process."""
        wanted = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
        sender = next((content for *kind, content in ancillary if tuple(kind) == wanted), None)
        if sender is None:
            raise ValueError("a message has no sender")
        pid = int(_CREDENTIALS.unpack(sender[: _CREDENTIALS.size])[0])
        fork = self.forks.get(name)
        if fork is None or fork.pid:
            raise ValueError("it reported the start of a process that was not requested")
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return  # it has ended already; the next message reports that
        assert self._process is not None
        ancestor = pid
        while ancestor > 1 and ancestor != self._process.pid:
            ancestor = parent(ancestor)
        if ancestor != self._process.pid:
            os.close(handle)
            raise ValueError("it reported the start of a process that is not its own")
        fork.pid, fork.handle = pid, handle
        fork.started.set()
        if fork.is_abandoned:
            fork.kill()

    def _has_exited(self, name: str, code: int) -> None:
        fork = self.forks.pop(name, None)
        if fork is None:
            raise ValueError("it reported the end of a process that was not requested")
        if fork.handle >= 0:
            os.close(fork.handle)
            fork.handle = -1
        fork.code = 128 - code if code > 128 else code
        fork.exited.set()
        fork.started.set()

    def _end(self) -> None:
        """End it, and all that descends from it, at once."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        self._has_ended = True
        self._ready.set()
        for name in list(self.forks):
            self._has_exited(name, -int(signal.SIGKILL))

    async def fork(self, name: str, request: dict[str, object], descriptors: list[int]) -> ForkedProcess:
        """Fork a server; returns when it is enclosed. `descriptors`: listening socket, package, log."""
        if self._control is None:
            raise SandboxError(self.breach or "the environment runtime has ended")
        forked = self.forks[name] = ForkedProcess(id=name)
        socket.send_fds(self._control, [json.dumps({"id": name, **request}).encode()], descriptors)
        try:
            await asyncio.wait_for(forked.started.wait(), 30)
        except TimeoutError:
            raise SandboxError("the sandbox could not be made in time") from None
        finally:
            if not forked.started.is_set():
                forked.kill()
        return forked

    async def stop(self) -> None:
        self._end()
        if self._process is not None:
            await self._process.wait()
        if self.log is not None:
            self.log.close()
