"""Whose turn it is: a job's row is taken, kept and laid down here. Postgres's clock decides, never Redis."""

import uuid
from collections.abc import Callable
from datetime import timedelta

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from backend.core.queue import send_wake_up
from backend.core.session import after_commit, transaction
from backend.core.tables import Job
from backend.domain.ids import new_id
from backend.domain.text import plain_text
from backend.domain.vocabulary import UNDER_WAY, JobStatus, RunStatus
from backend.runs.service import finish_run
from backend.runs.tables import Run
from workers.tasks.registry import BODIES, JobContext, find_afterword

LEASE = timedelta(seconds=15)
BEAT_SECONDS = 5.0

logger = structlog.get_logger(__name__)


def take(job_id: uuid.UUID, worker: str) -> tuple[Job, str] | None:
    """Lease a queued job and count the attempt. None when it is somebody else's, over or unknown."""
    owner = f"{worker}/{new_id()}"
    with transaction() as session:
        job = session.scalars(
            select(Job).where(Job.id == job_id, Job.status == JobStatus.QUEUED).with_for_update(skip_locked=True)
        ).one_or_none()
        if job is None:
            return None
        job.status = JobStatus.LEASED
        job.attempts += 1
        job.lease_owner = owner
        session.execute(update(Job).where(Job.id == job.id).values(lease_until=func.now() + LEASE))
        return job, owner


def renew(job_id: uuid.UUID, owner: str) -> bool:
    """False when the lease is another's by now: stop at once and write nothing more."""
    with transaction() as session:
        renewed = session.execute(
            update(Job)
            .where(Job.id == job_id, Job.lease_owner == owner, Job.status == JobStatus.LEASED)
            .values(lease_until=func.now() + LEASE)
            .returning(Job.id)
        ).one_or_none()
    return renewed is not None


def done(job_id: uuid.UUID, owner: str) -> None:
    with transaction() as session:
        if job := _mine(session, job_id, owner):
            _lay_down(session, job, JobStatus.DONE)


def hand_back(job_id: uuid.UUID, owner: str) -> None:
    """The worker ends, not the job: another may take it at once, and the attempt does not count."""
    with transaction() as session:
        if job := _mine(session, job_id, owner):
            job.attempts -= 1
            queue_again(session, job)
            send_after_commit(session, job)


def failed(job_id: uuid.UUID, owner: str, error: str, *, is_final: bool = False) -> None:
    """Another attempt follows after a pause, unless there were enough or it would be of no use."""
    with transaction() as session:
        job = _mine(session, job_id, owner)
        if job is None:
            return
        if is_final or job.attempts >= job.max_attempts:
            give_up(session, job, error)
        else:
            job.error = plain_text(error)
            queue_again(session, job)


def queue_again(session: Session, job: Job) -> None:
    job.status = JobStatus.QUEUED
    job.lease_owner = job.lease_until = None
    session.execute(update(Job).where(Job.id == job.id).values(sent_at=func.now()))


def send_after_commit(session: Session, job: Job) -> None:
    job_id, queue = job.id, job.queue
    after_commit(session, lambda: send_wake_up(job_id, queue))


def give_up(session: Session, job: Job, reason: str) -> None:
    """The job failed for good: its run, or whatever it was for, must not stay `running` for ever."""
    reason = plain_text(reason)
    logger.error("job given up", job=job.name, job_id=str(job.id), attempts=job.attempts, reason=reason)
    job.error = reason
    _lay_down(session, job, JobStatus.FAILED)
    _apart(session, job, lambda: _run_afterword(session, job, reason))
    if not _apart(session, job, lambda: _fail_run(session, job, reason)):
        _apart(session, job, lambda: _mark_run_failed(session, job, reason))


def _apart(session: Session, job: Job, follow_up: Callable[[], None]) -> bool:
    """Do what follows from the failure. An error there is logged and undone: it must not bring the job back."""
    try:
        with session.begin_nested():
            follow_up()
    except Exception:
        logger.exception("could not record what follows from a failed job", job=job.name, job_id=str(job.id))
        return False
    return True


def _run_afterword(session: Session, job: Job, reason: str) -> None:
    if afterword := find_afterword(job.name):
        afterword(session, JobContext(job.id, job.run_id, dict(job.arguments), job.attempts), reason)


def _fail_run(session: Session, job: Job, reason: str) -> None:
    entry = BODIES.get(job.name)
    run = session.get(Run, job.run_id) if job.run_id and (entry is None or entry.owns_run) else None
    if run is not None and not run.status.is_over:
        finish_run(session, run, RunStatus.FAILED, reason=reason)


def _mark_run_failed(session: Session, job: Job, reason: str) -> None:
    """Without news and follow-up jobs: the run must not be shown as running."""
    changes = {"status": RunStatus.FAILED, "reason": reason, "ended_at": func.now()}
    session.execute(update(Run).where(Run.id == job.run_id, Run.status.in_(UNDER_WAY)).values(changes))


def _mine(session: Session, job_id: uuid.UUID, owner: str) -> Job | None:
    return session.scalars(
        select(Job).where(Job.id == job_id, Job.lease_owner == owner, Job.status == JobStatus.LEASED).with_for_update()
    ).one_or_none()


def _lay_down(session: Session, job: Job, status: JobStatus) -> None:
    job.status = status
    job.lease_owner = job.lease_until = None
    session.execute(update(Job).where(Job.id == job.id).values(ended_at=func.now()))
