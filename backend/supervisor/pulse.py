"""Whether a child that lives also works: asked periodically, from a thread, because asking one that hangs blocks."""

import http.client
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

ASK_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
HUNG_SECONDS = 30.0
"""Generous: on a busy machine, a process that works may be late."""
MIN_MISSES = 3
"""The supervisor itself may have been late; time alone proves nothing."""
STUCK = 503
"""The status with which `/livez` says that no worker thread is free for anything."""


class Pulse:
    """Counts how long one child has not answered. `begin` with each start that became ready, `end` with its death."""

    def __init__(self, ask: Callable[[], bool], hung_seconds: float = HUNG_SECONDS) -> None:
        """`ask` may block for a while; False and OSError mean no sign of life."""
        self._ask, self.hung_seconds = ask, hung_seconds
        self._every = min(ASK_SECONDS, hung_seconds / (MIN_MISSES + 1))
        self._seen_at, self._misses = 0.0, 0
        self._is_running = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._seen()
        self._is_running.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._is_running.clear()

    def is_hung(self) -> bool:
        return self._misses >= MIN_MISSES and time.monotonic() - self._seen_at > self.hung_seconds

    def _run(self) -> None:
        while True:
            self._is_running.wait()
            time.sleep(self._every)
            if self._answers():
                self._seen()
            else:
                self._misses += 1

    def _answers(self) -> bool:
        try:
            return self._ask()
        except (OSError, http.client.HTTPException):
            return False

    def _seen(self) -> None:
        self._seen_at, self._misses = time.monotonic(), 0


def answers_http(connect: Callable[[], http.client.HTTPConnection], path: str) -> bool:
    """Any answer is a sign of life, but the one that says that the threads are stuck."""
    connection = connect()
    try:
        connection.request("GET", path)
        return connection.getresponse().status != STUCK
    finally:
        connection.close()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def touched_within(file: Path, seconds: float) -> bool:
    """Whether a process has touched its heartbeat file lately."""
    return time.time() - file.stat().st_mtime < seconds
