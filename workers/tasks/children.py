"""Run a module in a separate process: work that may crash, fill the memory or need torch never ends the worker.

Importing torch and what builds on it takes seconds of each process. So the processes are forked from one that has
imported the modules before, and done nothing else. It starts with the first process and ends with this one, or when it
was not needed for a while.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import structlog

from backend.core.embedded import IS_SUPPORTED, die_with_parent
from backend.core.session import transaction
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT, get_settings
from backend.supervisor.children import ChildGaveUp, Process
from backend.supervisor.fork_server import ForkServer

STOP_GRACE_SECONDS = 120.0
"""A child writes its checkpoint before it stops."""
KILL_GRACE_SECONDS = 10.0
IDLE_SECONDS = 600.0
"""The imported libraries take 400 MB, which the processes share."""
BEGIN = (sys.executable, "-m", "workers.begin")
STOP_CHECK_SECONDS = 2.0
_POLL_SECONDS = 0.2
_TAIL_LINES, _TAIL_BYTES = 20, 20_000

logger = structlog.get_logger(__name__)


class ChildFailed(RuntimeError):
    """A child process failed."""


fork_server = ForkServer(
    *((), {}, Path()),
    imports_more=True,
    death_signal=signal.SIGKILL,
    idle_seconds=IDLE_SECONDS,
    title=BEGIN,
    folder=PROJECT_ROOT,
)
atexit.register(fork_server.stop)
_forking = threading.Lock()
_unforkable: set[str] = set()
"""Modules that the server could not import, or not without starting threads or using a GPU."""


def run_child(
    module: str,
    arguments: list[str],
    *,
    run_id: uuid.UUID | None,
    may_continue: Callable[[], bool] = lambda: True,
    is_fresh: bool = False,
    has_children: bool = False,
) -> int:
    """Run the module until it ends and return its exit status; a negative one is a signal's number.

    Its output goes to `logs/<run id>.log` in the data folder. The child is ended with this process, if the job is
    interrupted, some time after a stop of its run was requested, and if `may_continue`, called periodically, is false.
    `is_fresh`: the child must not share with others what they have imported. `has_children`: it starts others itself.
    """
    log = log_file(module, run_id)
    process = start_child(module, arguments, log, is_fresh=is_fresh, has_children=has_children)
    logger.info("child began", module=module, pid=process.pid, log=str(log))
    stop_seen_at: float | None = None
    next_check = time.monotonic() + STOP_CHECK_SECONDS
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                break
            now = time.monotonic()
            if now < next_check:
                continue
            next_check = now + STOP_CHECK_SECONDS
            if not may_continue():
                _end(process)
            if run_id is not None and stop_seen_at is None:
                with transaction() as session:
                    run = session.get(Run, run_id)
                    stop_seen_at = now if run is None or run.stop_requested_at is not None else None
            if stop_seen_at is not None and now - stop_seen_at > STOP_GRACE_SECONDS:
                logger.warning("the child did not stop in time", pid=process.pid)
                _end(process)
    finally:
        _end(process)
    status = process.wait()
    logger.info("child ended", module=module, status=status)
    if status:
        logger.error("child failed", module=module, status=status, tail=_last_lines(log))
    return status


def start_child(
    module: str,
    arguments: list[str],
    log: Path,
    *,
    source: int | None = None,
    output: int | None = None,
    is_fresh: bool = False,
    has_children: bool = False,
) -> Process:
    """Start `python -m workers.begin MODULE …` as the leader of a session that ends with this thread, SIGKILLed.

    `source`, `output`: descriptors of its standard input and output. Default: none, and the log.
    """
    if IS_SUPPORTED and not is_fresh and module not in _unforkable:
        fork_server.log = log_file("fork-server", None)
        try:
            with _forking:
                return fork_server.fork(
                    [module, *arguments],
                    log,
                    source=source,
                    output=output,
                    environment=os.environ,  # noqa: TID251 - passed on
                    has_children=has_children,
                )
        except ChildGaveUp as error:
            _unforkable.add(module)
            logger.warning("processes of this module import for themselves from now on", reason=str(error))
    with log.open("ab") as opened:
        # The parent-death signal fires when the *thread* that started the child ends: jobs run in their main thread.
        return subprocess.Popen(
            [*BEGIN, module, *arguments],
            cwd=PROJECT_ROOT,
            stdin=subprocess.DEVNULL if source is None else source,
            stdout=opened if output is None else output,
            stderr=opened,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        )


def must_run_child(module: str, arguments: list[str], *, run_id: uuid.UUID | None, has_children: bool = False) -> None:
    """`run_child` that raises ChildFailed if the child fails."""
    if status := run_child(module, arguments, run_id=run_id, has_children=has_children):
        raise child_error(module, status, run_id)


def child_error(module: str, status: int, run_id: uuid.UUID | None) -> ChildFailed:
    """The error of a failed child, with the last line of its output."""
    name = f"status {status}" if status >= 0 else signal.Signals(-status).name
    if name == "SIGKILL":
        name = "SIGKILL (out of memory?)"
    lines = [line for line in _last_lines(log_file(module, run_id)) if line.strip()]
    return ChildFailed(f"{module} ended with {name}: {lines[-1][-1000:] if lines else 'it wrote nothing'}")


def log_file(module: str, run_id: uuid.UUID | None) -> Path:
    folder = get_settings().data / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{run_id or module}.log"


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]


def _end(process: Process) -> None:
    """End the child and all its processes."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
