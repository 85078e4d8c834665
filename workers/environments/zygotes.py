"""The host's side of a warm interpreter (`inside/zygote.py`): start it, have it fork servers, hear of their ends."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.domain.errors import SandboxError
from backend.settings import PROJECT_ROOT
from workers.environments.logs import LogTail

WARM_UP_SECONDS = 120.0
"""Importing `openenv` takes 3 to 6 seconds, and far longer on a busy machine with a cold disk."""
FORK_SECONDS = 30.0

_ENTRY = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from workers.environments.inside.zygote import main; "
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

    def kill(self) -> None:
        if self.pid and not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """One warm interpreter of one virtual environment."""

    def __init__(
        self,
        pythons: list[Path],
        *,
        is_jailed: bool,
        new_root: Path,
        uid: int,
        has_network: bool = False,
        hash_seed: int = 0,
    ) -> None:
        self._pythons, self._is_jailed, self._new_root, self._uid = pythons, is_jailed, new_root, uid
        self._has_network, self._hash_seed = has_network, hash_seed
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._forks: dict[str, ForkedProcess] = {}
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self.log: LogTail | None = None

    @property
    def is_jailed(self) -> bool:
        return self._is_jailed

    @property
    def is_alive(self) -> bool:
        return self._ready.is_set() and not self._ended.is_set()

    @property
    def has_forks(self) -> bool:
        return bool(self._forks)

    async def start(self) -> None:
        """Returns when it is warm. Raises SandboxError with what it printed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel tells us pids in our numbering
        self._new_root.mkdir(parents=True, exist_ok=True)
        self.log = LogTail()
        self._process = await asyncio.create_subprocess_exec(
            *(str(self._pythons[0]), "-s", "-P", "-S", "-B", "-c", _ENTRY, str(PROJECT_ROOT), str(theirs.fileno())),
            json.dumps(self._options()),
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self.log.writer,
            stderr=self.log.writer,
            env=_ENVIRONMENT | {"PYTHONHASHSEED": str(self._hash_seed)},
            start_new_session=True,
        )
        theirs.close()
        self.log.handed_over()
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._hear)
        await self._wait_until_warm()

    def _options(self) -> dict[str, Any]:
        environments = [str(python.parent.parent.absolute()) for python in self._pythons]
        return {
            "jail": self._is_jailed,
            "new_root": str(self._new_root),
            "environments": environments,
            "uid": self._uid,
            "network": self._has_network,
        }

    async def _wait_until_warm(self) -> None:
        ready, ended = asyncio.create_task(self._ready.wait()), asyncio.create_task(self._ended.wait())
        await asyncio.wait({ready, ended}, timeout=WARM_UP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        ended.cancel()
        if not self.is_alive:
            await asyncio.sleep(0.05)  # its last words
            said = self.log.last_lines() if self.log else ""
            await self.stop()
            raise SandboxError(f"the environment runtime did not start:\n{said}".strip())

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data, ancillary, _, _ = self._control.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._over()
            return
        message = json.loads(data)
        match message["event"]:
            case "ready":
                self._ready.set()
            case "started":
                self._has_started(message["id"], _pid(ancillary))
            case "exited":
                self._has_exited(message["id"], message["code"])

    def _has_started(self, name: str, pid: int) -> None:
        if fork := self._forks.get(name):
            fork.pid = pid
            fork.started.set()

    def _has_exited(self, name: str, code: int) -> None:
        if fork := self._forks.pop(name, None):
            fork.code = 128 - code if code > 128 else code
            fork.exited.set()
            fork.started.set()

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
            raise SandboxError("the environment runtime has ended")
        forked = self._forks[name] = ForkedProcess(name)
        socket.send_fds(self._control, [json.dumps({"id": name, **request}).encode()], descriptors)
        try:
            async with asyncio.timeout(FORK_SECONDS):
                await forked.started.wait()
        except TimeoutError:
            raise SandboxError("the sandbox could not be made in time") from None
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


def _pid(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0])
    raise SandboxError("the kernel did not say who started")


IS_SUPPORTED = sys.platform == "linux"
