"""Run one job: lease it, keep the lease alive, call its body, record how it ended."""

import asyncio
import os
import signal
import threading
import traceback
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

import structlog
from sqlalchemy.exc import DBAPIError

from backend.core.loops import new_event_loop
from backend.errors import AppError
from backend.settings import get_settings
from workers.tasks import leases
from workers.tasks.registry import JobContext, UnknownJob, find_body

if TYPE_CHECKING:
    from workers.policies.base import Policy

T = TypeVar("T")

logger = structlog.get_logger(__name__)

INTERRUPT = signal.SIGUSR2
"""Sent to a process that runs a job, to make it hand the job back. Celery itself uses SIGTERM and SIGUSR1."""
MAX_ERROR_CHARACTERS = 4000


class Interrupted(BaseException):
    """The worker ends or the lease was lost. Bodies let it pass; their `finally` blocks run."""


def execute(job_id: uuid.UUID, worker: str = "") -> None:
    """Run a job by its id. A message for a job that has ended, is leased or is unknown is no error.

    `worker`: the name under which this worker reports, so that pages can show what it runs.
    """
    if worker and leases.is_left_to_others(job_id, worker):
        return
    machine = worker or get_settings().worker_name or os.uname().nodename
    claimed = leases.claim(job_id, f"{machine}/{os.getpid()}")
    if claimed is None:
        logger.info("nothing to do for this wake-up", job_id=str(job_id))
        return
    job, owner = claimed
    context = JobContext(job.id, job.run_id, dict(job.arguments), job.attempts)
    names = {"job_id": str(job.id), "job": job.name, "attempt": job.attempts}
    if job.run_id:
        names["run_id"] = str(job.run_id)
    with structlog.contextvars.bound_contextvars(**names):
        lost = threading.Event()
        logger.info("job began")
        try:
            with _interruptible(), renewed_lease(job.id, owner, lost):
                find_body(job.name)(context)
        except Interrupted:
            logger.warning("job interrupted", lease_lost=lost.is_set())
            if not lost.is_set():
                leases.hand_back(job.id, owner)
        except (AppError, UnknownJob) as error:
            logger.error("job refused", error=str(error))
            leases.fail(job.id, owner, str(error), is_final=True)
        except Exception as error:
            logger.exception("job failed")
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
            leases.fail(job.id, owner, text[:MAX_ERROR_CHARACTERS])
        else:
            leases.complete(job.id, owner)
            logger.info("job done")


@contextmanager
def renewed_lease(job_id: uuid.UUID, owner: str, lost: threading.Event) -> Iterator[None]:
    """Renew the lease in a thread. If it is lost, set `lost` and interrupt the body."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(leases.BEAT_SECONDS):
            try:
                is_leased = leases.renew(job_id, owner)
            except DBAPIError:  # Postgres is away: continue, the lease may outlast it
                logger.warning("could not renew the lease", exc_info=True)
                continue
            if not is_leased:
                lost.set()
                os.kill(os.getpid(), INTERRUPT)
                return

    thread = threading.Thread(target=renew, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _interruptible() -> Iterator[None]:
    """INTERRUPT raises Interrupted in the body. Outside of a main thread the body cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(INTERRUPT, signal.SIG_IGN)  # once: the clean-up must not be interrupted too
        raise Interrupted

    before = signal.signal(INTERRUPT, interrupt)
    try:
        yield
    finally:
        signal.signal(INTERRUPT, before)


def run_async(main: Coroutine[object, None, T], *, closing: "Policy | None" = None) -> T:
    """`asyncio.run` for a job's body: an interrupt cancels `main`, waits for its clean-up and raises Interrupted.

    An exception that a signal handler raises could arise in one of asyncio's callbacks, which would only log it.
    `closing` is closed at the end, in the same loop.
    """
    handler = signal.getsignal(INTERRUPT)
    was_interrupted = False
    is_interruptible = callable(handler) and threading.current_thread() is threading.main_thread()

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal was_interrupted
            if not was_interrupted:  # once: the clean-up must not be interrupted too
                was_interrupted = True
                task.cancel()

        if is_interruptible:
            loop.add_signal_handler(INTERRUPT, interrupt)
        try:
            async with aclosing(closing) if closing is not None else nullcontext():
                return await main
        finally:
            if is_interruptible:
                loop.remove_signal_handler(INTERRUPT)
                signal.signal(INTERRUPT, handler)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(guarded())
        except asyncio.CancelledError:
            if was_interrupted:
                raise Interrupted from None
            raise
