"""Carrying one job out: lease it, keep the lease alive, call its body, record how it ended."""

import os
import signal
import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import structlog
from sqlalchemy.exc import DBAPIError

from backend.errors import AppError
from backend.settings import get_settings
from workers.tasks import leases
from workers.tasks.placement import is_passed_over
from workers.tasks.registry import JobContext, UnknownJob, find_body

logger = structlog.get_logger(__name__)

INTERRUPT = signal.SIGUSR2
"""Sent to a process that carries a job out, to make it hand the job back. Celery uses SIGTERM and SIGUSR1 itself."""

_MAX_ERROR_CHARACTERS = 4000


class Interrupted(BaseException):
    """The worker ends or the lease was lost. Bodies let it pass; their `finally` blocks run."""


def execute(job_id: uuid.UUID, worker: str = "") -> None:
    """The one entry for all jobs. A message for a job that is over, taken or unknown is no error. `worker` is the name
    under which this one reports, so that a page can say what it works on."""
    if worker and is_passed_over(job_id, worker):
        return
    taken = leases.take(job_id, f"{worker or _machine_name()}/{os.getpid()}")
    if taken is None:
        logger.info("nothing to do for this wake-up", job_id=str(job_id))
        return
    job, owner = taken
    context = JobContext(job.id, job.run_id, dict(job.arguments), job.attempts)
    bound = {"job_id": str(job.id), "job": job.name, "attempt": job.attempts}
    if job.run_id:
        bound["run_id"] = str(job.run_id)
    with structlog.contextvars.bound_contextvars(**bound):
        _carry_out(job.name, context, owner)


def _carry_out(name: str, context: JobContext, owner: str) -> None:
    heartbeat = Heartbeat(context.job_id, owner)
    logger.info("job began")
    try:
        with _interruptible(), heartbeat:
            find_body(name)(context)
    except Interrupted:
        logger.warning("job interrupted", lease_lost=heartbeat.is_lost)
        if not heartbeat.is_lost:
            leases.hand_back(context.job_id, owner)
    except (AppError, UnknownJob) as error:
        logger.error("job refused", error=str(error))
        leases.failed(context.job_id, owner, str(error), is_final=True)
    except Exception as error:
        logger.exception("job failed")
        leases.failed(context.job_id, owner, _describe(error))
    else:
        leases.done(context.job_id, owner)
        logger.info("job done")


class Heartbeat:
    """Renews the lease in a thread of its own; interrupts the body when the lease is lost."""

    def __init__(self, job_id: uuid.UUID, owner: str) -> None:
        self.job_id, self.owner = job_id, owner
        self.is_lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ended.wait(leases.BEAT_SECONDS):
            try:
                if leases.renew(self.job_id, self.owner):
                    continue
            except DBAPIError:  # Postgres is away: go on, the lease may outlast it
                logger.warning("could not renew the lease", exc_info=True)
                continue
            self.is_lost = True
            os.kill(os.getpid(), INTERRUPT)
            return


@contextmanager
def _interruptible() -> Iterator[None]:
    """INTERRUPT raises Interrupted in the body. Elsewhere than in a main thread the body cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(INTERRUPT, _interrupt)
    try:
        yield
    finally:
        signal.signal(INTERRUPT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(INTERRUPT, signal.SIG_IGN)  # once is enough: the clean-up must not be interrupted too
    raise Interrupted


def _machine_name() -> str:
    return get_settings().worker_name or os.uname().nodename


def _describe(error: Exception) -> str:
    """The error and where it arose, short enough for a page."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
    return text[:_MAX_ERROR_CHARACTERS]
