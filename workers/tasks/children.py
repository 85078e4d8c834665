"""Work in a process of its own: what may crash, fill the memory or need torch never takes the worker with it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import IO

import structlog

from backend.core.embedded import die_with_parent
from backend.core.session import transaction
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT, get_settings

STOP_GRACE_SECONDS = 120.0
"""A child that was asked to stop writes its checkpoint first."""
KILL_GRACE_SECONDS = 10.0
BEGIN = "workers.begin"
_POLL_SECONDS = 0.2
_STOP_CHECK_SECONDS = 2.0
_TAIL_LINES = 20

logger = structlog.get_logger(__name__)


class ChildFailed(RuntimeError):
    """A child process ended badly."""


def run_child(
    module: str, arguments: list[str], *, run_id: uuid.UUID | None, may_go_on: Callable[[], bool] = lambda: True
) -> int:
    """Run the module in a process until it ends and return its exit status; a negative one is a signal's number.

    Its output goes to `logs/<run id>.log` in the data folder. It ends with this process, when the job is interrupted,
    some time after a stop of its run was asked for, and when `may_go_on`, asked now and then, says no.
    """
    log = _log_file(module, run_id)
    # The parent-death signal fires when the *thread* that started the child ends: jobs run in their main thread.
    process = subprocess.Popen(
        [sys.executable, "-m", BEGIN, module, *arguments],
        cwd=PROJECT_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),
    )
    logger.info("child began", module=module, pid=process.pid, log=str(log))
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    assert process.stdout is not None
    reader = Thread(target=_forward, args=(process.stdout, log, tail), name="child-log", daemon=True)
    reader.start()
    try:
        status = _wait(process, run_id, may_go_on)
    finally:
        _end(process)
        reader.join(timeout=5)
    logger.info("child ended", module=module, status=status)
    if status:
        logger.error("child failed", module=module, status=status, tail=list(tail))
    return status


def must_run_child(module: str, arguments: list[str], *, run_id: uuid.UUID | None) -> None:
    """`run_child` whose bad end is an error that says the last line which the child wrote."""
    if status := run_child(module, arguments, run_id=run_id):
        raise bad_end(module, status, run_id)


def bad_end(module: str, status: int, run_id: uuid.UUID | None) -> ChildFailed:
    return ChildFailed(f"{module} ended with {_in_words(status)}: {last_line(_log_file(module, run_id))}")


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return lines[-1][-1000:] if lines else "it wrote nothing"


def _wait(process: subprocess.Popen[bytes], run_id: uuid.UUID | None, may_go_on: Callable[[], bool]) -> int:
    asked_at: float | None = None
    next_check = time.monotonic() + _STOP_CHECK_SECONDS
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_SECONDS)
        now = time.monotonic()
        if run_id is None or now < next_check:
            continue
        next_check = now + _STOP_CHECK_SECONDS
        if not may_go_on():
            _end(process)
        if asked_at is None and _is_stop_requested(run_id):
            asked_at = now
        if asked_at is not None and now - asked_at > STOP_GRACE_SECONDS:
            logger.warning("the child did not stop by itself", pid=process.pid)
            _end(process)


def _is_stop_requested(run_id: uuid.UUID) -> bool:
    with transaction() as session:
        run = session.get(Run, run_id)
        return run is None or run.stop_requested_at is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child and all that it started."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _forward(output: IO[bytes], log: Path, tail: deque[str]) -> None:
    """Keep the child's lines, and its last ones for the worker's own log."""
    with output, log.open("ab") as kept:
        for line in output:
            kept.write(line)
            kept.flush()
            tail.append(line.decode(errors="replace").rstrip()[-500:])


def _log_file(module: str, run_id: uuid.UUID | None) -> Path:
    folder = get_settings().data / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{run_id or module}.log"


def _in_words(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    name = signal.Signals(-status).name
    return f"{name} (out of memory?)" if name == "SIGKILL" else name
