"""The supervisor's side of `workers/fork_server.py`: processes that share their imports, forked on request."""

import contextlib
import ctypes
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from backend.supervisor.children import ChildGaveUp, Process, last_lines, spawn

MAX_REQUEST_BYTES = 65_536
IMPORT_SECONDS = 120.0
"""Time for an answer: the server may have to import before. On a busy machine with a cold disk, that takes long."""
READ_LATE = re.compile(r"PROCTOR_\w+|DATABASE_URL|REDIS_URL|PYTEST_CURRENT_TEST")
"""Variables that no module reads when it is imported. If another one changes, the server starts again."""
_ONLY_WHILE_IMPORTING = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Libraries that look for a GPU when they are imported must not initialize CUDA, which does not survive a fork."""
_TITLE_BYTES = 512
_PR_SET_CHILD_SUBREAPER = 36


class ForkOptions(TypedDict):
    """What all processes of a server have in common."""

    modules: list[str]
    """Imported before the first fork."""
    imports_more: bool
    """Whether the module of each process is imported before the fork, so that the next process has it, too."""
    death_signal: int
    """Sent to the processes when the process that requested them ends."""
    idle_seconds: float | None
    """The server ends when nothing was requested for this long."""
    title: list[str]
    """The first words of the processes' command lines. Their modules and arguments follow."""


class ForkRequest(TypedDict):
    command: list[str]
    """A module and its arguments, as for `workers.begin`."""
    niceness: int
    has_children: bool
    """Whether the process gets a separate fork server: a fork of itself before it does anything."""
    variables: dict[str, str | None]
    """Environment variables that differ from the server's. None: not set."""


class AdoptedProcess:
    """A child process that another process forked for this one. The part of `subprocess.Popen` that is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # the status is lost if this process was started to ignore SIGCHLD
                    pid, status = self.pid, 0
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while (status := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            pause = min(pause * 2, 0.05)  # as `Popen.wait` does: the end of a short process is noticed at once
            time.sleep(pause)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """Started with the first fork, and again if it has ended. Its processes do not end with it, but with this one."""

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        imports_more: bool = False,
        death_signal: signal.Signals = signal.SIGTERM,
        idle_seconds: float | None = None,
        title: Sequence[str] = ("proctor",),
        folder: Path | None = None,
    ) -> None:
        """The fields of `ForkOptions`; `folder`: working folder. `environment` is also the processes' default one."""
        self.environment, self.log, self.folder = environment, log, folder
        self.options: ForkOptions = {
            "modules": list(modules),
            "imports_more": imports_more,
            "death_signal": death_signal,
            "idle_seconds": idle_seconds,
            "title": list(title),
        }
        self.process: Process | None = None
        self._control: socket.socket | None = None
        self._given: dict[str, str] = {}

    def inherit(self, pid: int, control: socket.socket) -> None:
        """Use a server that was forked from this process, and has its environment."""
        self.process, self._control = AdoptedProcess(pid), control
        self._control.settimeout(IMPORT_SECONDS)
        self.environment = self._given = dict(os.environ)  # noqa: TID251 - passed on

    def start(self) -> None:
        """Begin to import, without waiting for the end of it."""
        self.stop()
        self._given = {**self.environment, "PYTHONFAULTHANDLER": "1"}
        if self.options["imports_more"]:
            self._given = _ONLY_WHILE_IMPORTING | self._given
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(IMPORT_SECONDS)
        with theirs:
            options = json.dumps(self.options).ljust(_TITLE_BYTES)  # a process's title replaces its server's
            command = [sys.executable, "-m", "workers.fork_server", str(theirs.fileno()), options]
            self.process = spawn(command, self._given, self.log, folder=self.folder, kept=(theirs.fileno(),))

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        if self._control:
            self._control.close()

    def fork(
        self,
        command: Sequence[str],
        log: Path,
        niceness: int = 0,
        *,
        source: int | None = None,
        output: int | None = None,
        environment: Mapping[str, str] | None = None,
        has_children: bool = False,
    ) -> AdoptedProcess:
        """Run a module. Its standard output goes to the descriptor `output`; default: to the log, as its errors do.

        `source`: descriptor of its standard input, which is empty by default. Call it from the main thread, with which
        the process ends. Raises ChildGaveUp.
        """
        variables = self._restart_if_needed(environment)
        request: ForkRequest = {
            "command": list(command),
            "niceness": niceness,
            "has_children": has_children,
            "variables": variables,
        }
        try:
            for _ in range(2):
                if self.process is None or self.process.poll() is not None:
                    self.start()
                with contextlib.suppress(OSError):
                    if process := self._request(request, log, source, output):
                        return process
                self.stop()  # it ended, or does not answer
        except BaseException:  # interrupted: its answer must not be taken for that to the next request
            self.stop()
            raise
        raise ChildGaveUp(f"The fork server ended or did not answer. Its log's last lines:\n{last_lines(self.log)}")

    def _restart_if_needed(self, environment: Mapping[str, str] | None) -> dict[str, str | None]:
        """Return the variables of a process that differ from the server's."""
        if environment is None:
            return {}
        if _read_early(environment) != _read_early(self.environment) or not self._given:
            self.environment = dict(environment)
            self.start()
        names = environment.keys() | self._given.keys()
        return {name: environment.get(name) for name in names if environment.get(name) != self._given.get(name)}

    def _request(
        self, request: ForkRequest, log: Path, source: int | None, output: int | None
    ) -> AdoptedProcess | None:
        """Send a request; None if the server ends. The process begins its work only after this one knows it."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with log.open("ab") as opened, open(os.devnull) as nothing, ours, _adopting():
            ours.settimeout(IMPORT_SECONDS)
            with theirs:
                streams = [
                    nothing.fileno() if source is None else source,
                    opened.fileno() if output is None else output,
                    opened.fileno(),
                ]
                socket.send_fds(self._control, [json.dumps(request).encode()], [*streams, theirs.fileno()])
            if not (answer := self._control.recv(64)):
                return None
            process = AdoptedProcess(int(answer))
            match ours.recv(1):
                case b"1":
                    ours.send(b"1")
                    return process
                case b"0":
                    raise ChildGaveUp(f"An import of {request['command'][0]} initialized CUDA, which survives no fork.")
            return None


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not READ_LATE.fullmatch(name)}


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of descendants whose parents end within this context."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
