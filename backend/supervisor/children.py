"""One child process: started, restarted with a back-off when it dies, and ended."""

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backend.core.embedded import die_with_parent
from backend.supervisor.pulse import Pulse

MAX_DEATHS = 5
WITHIN_SECONDS = 120.0
"""More deaths than that in so short a time end the whole."""
MAX_EARLY_DEATHS = 2
"""A child that never lived for `SETTLED_SECONDS` has a fault that a restart does not mend."""
SETTLED_SECONDS = 10.0
STOP_SECONDS = 15.0
STACKS_SECONDS = 2.0
"""For a child that hangs to write its threads' stacks to its log before it is killed."""
_TAIL_LINES = 15


class ChildGaveUp(RuntimeError):
    """A child dies again and again; the message holds its log's last lines."""


@dataclass
class Child:
    """Start children from the main thread: the kernel ends them with the thread that started them."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    log: Path
    is_answering: Callable[[], bool]
    """Is it ready for work? Asked until it is, after each start."""
    stop_signal: signal.Signals = signal.SIGTERM
    pulse: Pulse | None = None
    """Asked while it is ready; a child that hangs is killed, and then restarted like one that died."""
    process: subprocess.Popen[bytes] | None = None
    is_ready: bool = False
    _started_at: float = 0.0
    _deaths: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DEATHS))
    _has_settled: bool = False
    _restart_at: float | None = None
    _kill_at: float | None = None

    def launch(self) -> None:
        if self.log.exists():
            self.log.rename(self.log.with_name(self.log.name + ".1"))  # a log tells of one start; one more is kept
        self.is_ready = False
        self._restart_at = None
        self._started_at = time.monotonic()
        self.process = self.start()

    def watch(self) -> str | None:
        """Look after it once; returns news for a person. Raises ChildGaveUp."""
        now = time.monotonic()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self.launch()
            return None
        if self.process is None:
            return None
        if self.process.poll() is not None:
            return self._died(now, self.process.returncode)
        self._has_settled = self._has_settled or now - self._started_at > SETTLED_SECONDS
        if not self.is_ready:
            return self._look_whether_ready()
        return self._look_whether_hung(now) if self.pulse else None

    def _look_whether_ready(self) -> str | None:
        if self._kill_at is not None:
            if time.monotonic() > self._kill_at:
                self._kill_all()
        elif self.is_answering():
            self.is_ready = True
            if self.pulse:
                self.pulse.begin()
            return f"{self.name} ready"
        return None

    def _look_whether_hung(self, now: float) -> str | None:
        assert self.pulse is not None
        assert self.process is not None
        if not self.pulse.is_hung():
            return None
        self.pulse.end()
        self.is_ready = False
        self._kill_at = now + STACKS_SECONDS
        self.process.send_signal(signal.SIGABRT)  # Python's fault handler writes all stacks, and the process ends
        return (
            f"{self.name} has not answered for {self.pulse.hung_seconds:g} s; ending it "
            f"(the stacks of its threads are in {self.log}, soon {self.log.name}.1)"
        )

    def _kill_all(self) -> None:
        """The child and everything it started that has not left its session."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _died(self, now: float, status: int) -> str:
        if self.pulse:
            self.pulse.end()
        if self._kill_at is not None:
            self._kill_at = None
            self._kill_all()
        self._deaths.append(now)
        self.is_ready = False
        limit = MAX_DEATHS if self._has_settled else MAX_EARLY_DEATHS
        recent = sum(now - death < WITHIN_SECONDS for death in self._deaths)
        if recent >= limit:
            raise ChildGaveUp(
                f"{self.name} ended with status {status}, {recent} times. Its log's last lines:\n{self.tail()}"
            )
        pause = 0.5 * 2 ** (recent - 1)
        self._restart_at = now + pause
        return f"{self.name} ended with status {status}; starting it again in {pause:g} s (log: {self.log})"

    def tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text[-8000:].splitlines()[-_TAIL_LINES:])

    def ask_to_stop(self) -> None:
        self._restart_at = None
        if self.process and self.process.poll() is None:
            self.process.send_signal(self.stop_signal)

    def wait_until_ended(self, seconds: float) -> None:
        """Ends it with force after so many seconds; whatever it started goes with it."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(seconds, 0))
        self._kill_all()
        self.process.wait()


def spawn(
    command: list[str], environment: Mapping[str, str], log: Path, niceness: int = 0, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """A child in a session of its own (Ctrl-C reaches only the supervisor) that ends when the supervisor does."""

    def begin() -> None:
        die_with_parent(signal.SIGTERM)
        os.nice(niceness)
        if niceness:
            with contextlib.suppress(OSError):  # a session is scheduled as one, by a niceness of its own
                Path("/proc/self/autogroup").write_text(str(niceness))

    with log.open("ab") as opened:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "PYTHONFAULTHANDLER": "1"},  # a child that hangs or crashes leaves its stacks
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            start_new_session=True,
            preexec_fn=begin,
        )
