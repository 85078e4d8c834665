"""The Celery worker: `celery -A workers.tasks.celery_app worker -Q cpu`. One task, which runs a job by its id.

On one machine: `python -m workers.begin workers.tasks.celery_app -Q cpu`, whose pool shares what was imported.
"""

import contextlib
import os
import signal
import sys
import threading
import uuid
from pathlib import Path

import structlog
from celery import Celery, Task, signals

from backend.core.logs import configure_logging
from backend.core.queue import EXECUTE, get_celery
from backend.core.session import forget_engine
from backend.settings import get_settings
from workers.tasks.execute import INTERRUPT, execute
from workers.tasks.heartbeat import WorkerHeartbeat

logger = structlog.get_logger(__name__)

app: Celery = get_celery()
app.conf.update(
    worker_disable_prefetch=True,  # a message waits for a free process, in any worker
    worker_send_task_events=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,  # the lease decides, not the broker's connection
    worker_redirect_stdouts=False,
    worker_proc_alive_timeout=60,  # forking may be slow on a busy machine
)

TOUCH_SECONDS = 5.0
"""How often a worker touches its file, so that `proctor up` restarts one that hangs."""


signals.setup_logging.connect(lambda **_: configure_logging("worker"), weak=False)


@app.task(name=EXECUTE, bind=True)
def execute_job(self: Task, job_id: str) -> None:
    execute(uuid.UUID(job_id), str(self.request.hostname or ""))


@signals.worker_process_init.connect
def _begin_process(**_: object) -> None:
    """A forked process shares no connection with its parent, and ignores the interrupt while it is idle."""
    forget_engine(is_forked=True)
    signal.signal(INTERRUPT, signal.SIG_IGN)


@signals.worker_ready.connect
def _begin_heartbeat(sender: object, **_: object) -> None:
    """Report in the database, and touch a file named after the worker: `cpu` of `cpu@host`."""
    name, queues = str(sender.hostname), sorted(sender.app.amqp.queues.consume_from)  # type: ignore[attr-defined]
    heartbeat = WorkerHeartbeat(name, queues)
    heartbeat.start()
    signals.worker_shutdown.connect(lambda **_: heartbeat.leave(), weak=False)
    folder = get_settings().run_folder
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name.partition("@")[0]
    file.touch()

    def touch_periodically() -> None:
        while not heartbeat.left.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                file.touch()

    threading.Thread(target=touch_periodically, name="heartbeat", daemon=True).start()
    logger.info("worker ready", worker=name, queues=queues)


@signals.worker_shutting_down.connect
def _hand_jobs_back(**_: object) -> None:
    """A worker that ends does not wait for its jobs: the processes of its pool hand them back for another worker."""
    for thread in threading.enumerate():
        path = Path(f"/proc/self/task/{thread.native_id}/children")
        for child in path.read_text().split() if thread.native_id and path.exists() else ():
            os.kill(int(child), INTERRUPT)


def main() -> None:
    app.worker_main(["worker", *sys.argv[1:]])
