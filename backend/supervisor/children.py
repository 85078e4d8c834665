"""Child processes: started, probed for liveness, restarted with a back-off when they die, and stopped."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from backend.core.embedded import die_with_parent

MAX_DEATHS = 5
WITHIN_SECONDS = 120.0
"""More than MAX_DEATHS in this time stop the supervisor."""
MAX_EARLY_DEATHS = 2
"""A child that never lived for SETTLED_SECONDS has a fault that a restart does not fix."""
SETTLED_SECONDS = 10.0
STOP_SECONDS = 15.0
STACKS_SECONDS = 2.0
"""Time for a hung child to write its threads' stacks to its log before it is killed."""

PROBE_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
MIN_MISSES = 3
"""The supervisor itself may have been late, so that time alone proves nothing."""
NOT_ALIVE = frozenset({0, 503})
"""No response, and the status with which `/livez` reports that no worker thread is free."""


class ChildGaveUp(RuntimeError):
    """A child dies repeatedly. The message has its log's last lines."""


class LivenessProbe:
    """Measures how long a child has not responded. `begin` when it is ready, `end` when it dies.

    Probes run in a thread, because probing a hung process blocks.
    """

    def __init__(self, responds: Callable[[], bool], hung_seconds: float) -> None:
        """`responds` may block for a while. False and OSError count as no response."""
        self._responds, self.hung_seconds = responds, hung_seconds
        self._interval = min(PROBE_SECONDS, hung_seconds / (MIN_MISSES + 1))
        self._seen_at, self._misses = 0.0, 0
        self._is_running = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._seen_at, self._misses = time.monotonic(), 0
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
            time.sleep(self._interval)
            try:
                has_responded = self._responds()
            except OSError:
                has_responded = False
            if has_responded:
                self._seen_at, self._misses = time.monotonic(), 0
            else:
                self._misses += 1


def http_status(server: tuple[str, int] | Path, path: str, timeout: float = TIMEOUT_SECONDS) -> int:
    """Return the status of the response of a server at a host and port, or at a Unix socket; 0: none."""
    connection = http.client.HTTPConnection("localhost", timeout=timeout)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        if isinstance(server, Path):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout)
            connection.sock.connect(str(server))
        else:
            connection.sock = socket.create_connection(server, timeout)
        connection.request("GET", path)
        return connection.getresponse().status
    return 0


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """End on SIGTERM and SIGHUP (the terminal was closed) as on Ctrl-C, even if a shell made this ignore Ctrl-C.

    Further signals are ignored, so that the end is orderly.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Process(Protocol):
    """A child process of this one: a `subprocess.Popen`, or one that was forked elsewhere and adopted."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...


@dataclass
class Child:
    """A child process. Start it from the main thread: the kernel ends it with the thread that started it."""

    name: str
    start: Callable[[], Process]
    log: Path
    is_answering: Callable[[], bool]
    """Whether it is ready for work. Called after each start until it is."""
    stop_signal: signal.Signals = signal.SIGTERM
    probe: LivenessProbe | None = None
    """Runs while the child is ready. A hung child is killed, then restarted like one that died."""
    process: Process | None = None
    is_ready: bool = False
    _started_at: float = 0.0
    _deaths: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DEATHS))
    _has_settled: bool = False
    _restart_at: float | None = None
    _kill_at: float | None = None

    def launch(self) -> None:
        if self.log.exists():
            self.log.rename(self.log.with_name(self.log.name + ".1"))  # each start has its log; one more is kept
        self.is_ready = False
        self._restart_at = None
        self._started_at = time.monotonic()
        self.process = self.start()

    def watch(self) -> str | None:
        """Check the child once, or start it; returns news for a person. Raises ChildGaveUp."""
        now = time.monotonic()
        if self.process is None or self._restart_at is not None:
            if self._restart_at is None or now >= self._restart_at:
                self.launch()
            return None
        if (status := self.process.poll()) is not None:
            return self._handle_death(now, status)
        self._has_settled = self._has_settled or now - self._started_at > SETTLED_SECONDS
        if self.is_ready:
            if self.probe is None or not self.probe.is_hung():
                return None
            self.probe.end()
            self.is_ready = False
            self._kill_at = now + STACKS_SECONDS
            self.process.send_signal(signal.SIGABRT)  # Python's fault handler writes all stacks, and the process ends
            return (
                f"{self.name} has not answered for {self.probe.hung_seconds:g} s; ending it "
                f"(the stacks of its threads are in {self.log}, soon {self.log.name}.1)"
            )
        if self._kill_at is not None:
            if now > self._kill_at:
                self._kill_all()
        elif self.is_answering():
            self.is_ready = True
            if self.probe:
                self.probe.begin()
            return f"{self.name} ready"
        return None

    def _handle_death(self, now: float, status: int) -> str:
        if self.probe:
            self.probe.end()
        if self._kill_at is not None:
            self._kill_at = None
            self._kill_all()
        self._deaths.append(now)
        self.is_ready = False
        limit = MAX_DEATHS if self._has_settled else MAX_EARLY_DEATHS
        recent = sum(now - death < WITHIN_SECONDS for death in self._deaths)
        if recent >= limit:
            raise ChildGaveUp(
                f"{self.name} ended with status {status}, {recent} times. Its log's last lines:\n{last_lines(self.log)}"
            )
        pause = 0.5 * 2 ** (recent - 1)
        self._restart_at = now + pause
        return f"{self.name} ended with status {status}; starting it again in {pause:g} s (log: {self.log})"

    def _kill_all(self) -> None:
        """Kill the child and everything it started that is still in its session."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ask_to_stop(self) -> None:
        self._restart_at = None
        if self.process and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)

    def wait_until_ended(self, seconds: float) -> None:
        """Wait until the child has ended. After `seconds`, kill it with everything it started."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(seconds, 0))
        self._kill_all()
        self.process.wait()


def spawn(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    niceness: int = 0,
    folder: Path | None = None,
    kept: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in a separate session (Ctrl-C reaches only the supervisor) that ends with the supervisor.

    It inherits only the descriptors `kept`.
    """
    with log.open("ab") as opened:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "PYTHONFAULTHANDLER": "1"},  # a child that hangs or crashes leaves its stacks
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            start_new_session=True,
            preexec_fn=lambda: begin_child(niceness),
            pass_fds=kept,
        )


def begin_child(niceness: int, death_signal: signal.Signals = signal.SIGTERM) -> None:
    """In a new process that leads its session: end with the supervisor, and yield to others."""
    die_with_parent(death_signal)
    os.nice(niceness)
    if niceness:
        with contextlib.suppress(OSError):  # a session is scheduled as one, by its own niceness
            Path("/proc/self/autogroup").write_text(str(niceness))


def last_lines(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text[-8000:].splitlines()[-15:])
