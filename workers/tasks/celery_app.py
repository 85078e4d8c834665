"""The Celery worker: `celery -A workers.tasks.celery_app worker -Q cpu`. One task, which runs a job by its id."""

import contextlib
import os
import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import structlog
from celery import signals

from backend.core.logs import configure_logging
from backend.core.queue import EXECUTE, get_celery
from backend.core.session import forget_engine
from backend.settings import get_settings
from workers.tasks.execute import INTERRUPT, execute
from workers.tasks.heartbeat import Presence

logger = structlog.get_logger(__name__)

app = get_celery()
app.conf.update(
    worker_disable_prefetch=True,  # a message waits for a free process, in whichever worker that is
    worker_send_task_events=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,  # the lease decides, not the broker's connection
    worker_redirect_stdouts=False,
    worker_proc_alive_timeout=60,  # forking may be slow on a busy machine
)

HEARTBEAT_SECONDS = 5.0

_presence: list[Presence] = []
_left = threading.Event()


@app.task(name=EXECUTE, bind=True)
def execute_job(self: Any, job_id: str) -> None:
    execute(uuid.UUID(job_id), str(self.request.hostname or ""))


@signals.setup_logging.connect
def _log_as_json(**_: Any) -> None:
    configure_logging("worker")


@signals.worker_process_init.connect
def _begin_process(**_: Any) -> None:
    """A forked process shares no connection with its parent, and ignores the interrupt while it is idle."""
    forget_engine(is_forked=True)
    signal.signal(INTERRUPT, signal.SIG_IGN)


@signals.worker_ready.connect
def _report(sender: Any, **_: Any) -> None:
    presence = Presence(name=str(sender.hostname), queues=sorted(sender.app.amqp.queues.consume_from))
    presence.start()
    _presence.append(presence)
    _begin_heartbeat(presence.name)
    logger.info("worker ready", worker=presence.name, queues=presence.queues)


def _begin_heartbeat(name: str) -> None:
    """Touch a file named after the worker, `cpu` of `cpu@host`, from a thread: `proctor up` restarts one that hangs."""
    folder = get_settings().run_folder
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name.partition("@")[0]
    file.touch()

    def beat() -> None:
        while not _left.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                file.touch()

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


@signals.worker_shutting_down.connect
def _hand_jobs_back(**_: Any) -> None:
    """A worker that is told to end does not wait for its jobs: each is handed back for another to go on with."""
    for child in _children():
        os.kill(child, INTERRUPT)


@signals.worker_shutdown.connect
def _leave(**_: Any) -> None:
    _left.set()
    for presence in _presence:
        presence.leave()


def _children() -> list[int]:
    """The processes of the pool, which are children of this one."""
    found: list[int] = []
    for thread in threading.enumerate():
        if thread.native_id:
            path = Path(f"/proc/self/task/{thread.native_id}/children")
            found += [int(pid) for pid in path.read_text().split()] if path.exists() else []
    return found
