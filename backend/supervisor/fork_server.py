"""The supervisor's side of `workers/fork_server.py`: processes that share their imports, forked on request."""

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from backend.supervisor.children import ChildGaveUp, last_lines, spawn

MAX_REQUEST_BYTES = 16_384
IMPORT_SECONDS = 120.0
"""Time for the first answer: the server imports before. On a busy machine with a cold disk, that takes long."""
_PR_SET_CHILD_SUBREAPER = 36


class ForkRequest(TypedDict):
    command: list[str]
    """A module and its arguments, as for `workers.begin`."""
    niceness: int


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
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    """Started with the first fork, and again if it has ended. Its processes do not end with it, but with this one."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """`modules` are imported before the first fork. All processes have the server's environment."""
        self.modules, self.environment, self.log = modules, environment, log
        self.process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Begin to import, without waiting for the end of it."""
        self.stop()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(IMPORT_SECONDS)
        with theirs:
            command = [sys.executable, "-m", "workers.fork_server", str(theirs.fileno()), *self.modules]
            self.process = spawn(command, self.environment, self.log, kept=(theirs.fileno(),))

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
        if self._control:
            self._control.close()

    def fork(self, command: Sequence[str], log: Path, niceness: int = 0, output: int | None = None) -> AdoptedProcess:
        """Run a module. Its standard output goes to the descriptor `output`; default: to the log, as its errors do.

        Call it from the main thread, with which the process ends. Raises ChildGaveUp.
        """
        request: ForkRequest = {"command": list(command), "niceness": niceness}
        with log.open("ab") as opened:
            streams = [opened.fileno() if output is None else output, opened.fileno()]
            for _ in range(2):
                if self.process is None or self.process.poll() is not None:
                    self.start()
                assert self._control is not None
                with contextlib.suppress(OSError), _adopting():
                    socket.send_fds(self._control, [json.dumps(request).encode()], streams)
                    if answer := self._control.recv(64):
                        return AdoptedProcess(int(answer))
                self.stop()  # it ended, or does not answer
        raise ChildGaveUp(f"The fork server ended or did not answer. Its log's last lines:\n{last_lines(self.log)}")


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of descendants whose parents end within this context."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
