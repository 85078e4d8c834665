"""The sweeper: `python -m workers.tasks.housekeeping`. Several may run beside each other; each step is idempotent."""

import signal
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import structlog
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy import Text, cast, delete, func, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from backend.checkpoints.pruning import delete_leftovers
from backend.core.logs import configure_logging
from backend.core.queue import count_waiting, send_wake_up
from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.vocabulary import JobStatus, Queue
from backend.notifications.tables import Notice
from backend.review.audit_sample import draw_audits
from backend.review.queue import refresh
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.team.tables import AttemptLimit, SignInLink, WebSession
from backend.training.tables import Preflight
from workers.storage.text_index import index_texts
from workers.tasks import leases
from workers.tasks.nightly_checks import check_again
from workers.tasks.notifications import ask_for_due

SWEEP_SECONDS = 2.0
TIDY_SECONDS = 60.0
INDEX_SECONDS = 1.0
"""At most so much of each round makes what was said findable."""
UNTAKEN = timedelta(seconds=5)
"""A wake-up that led to nothing for so long is sent again; times the attempt, so that failures back off."""
SURELY_LOST = timedelta(minutes=1)
"""Sent again even though messages wait in the broker, which may all be for other jobs."""
FORGET_WORKERS_AFTER = timedelta(minutes=2)
FORGET_PREFLIGHTS_AFTER = timedelta(days=7)
"""But one from which a run was started stays with the run."""
FORGET_NOTICES_AFTER = timedelta(days=90)
KEEP_EXPIRED_LINKS = timedelta(days=30)
_BATCH = 200

logger = structlog.get_logger(__name__)


def requeue_expired() -> int:
    """Leased jobs whose worker stopped its heartbeat: queued again, or given up after too many attempts."""
    with transaction() as session:
        expired = session.scalars(
            select(Job)
            .where(Job.status == JobStatus.LEASED, Job.lease_until < func.now())
            .with_for_update(skip_locked=True)
            .limit(_BATCH)
        ).all()
        for job in expired:
            logger.warning("lease expired", job_id=str(job.id), job=job.name, owner=job.lease_owner)
            if job.attempts >= job.max_attempts:
                leases.give_up(session, job, f"Its worker died or hung {job.attempts} times.")
            else:
                leases.queue_again(session, job)
                leases.send_after_commit(session, job)
    return len(expired)


def resend_untaken() -> int:
    """Queued jobs whose wake-up was lost. While messages wait in the broker, the workers are merely busy."""
    sent = 0
    for queue in Queue:
        for job_id in _untaken(queue, SURELY_LOST if count_waiting(queue) else UNTAKEN):
            send_wake_up(job_id, queue)
            _note_sent(job_id)
            sent += 1
    if sent:
        logger.info("wake-ups sent again", count=sent)
    return sent


def _untaken(queue: Queue, patience: timedelta) -> list[uuid.UUID]:
    pause = patience * func.greatest(Job.attempts, 1)
    with transaction() as session:
        return list(
            session.scalars(
                select(Job.id)
                .where(Job.status == JobStatus.QUEUED, Job.queue == queue, Job.sent_at < func.now() - pause)
                .order_by(Job.id)
                .limit(_BATCH)
            )
        )


def _note_sent(job_id: uuid.UUID) -> None:
    with transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(sent_at=func.now()))


def tidy() -> None:
    """Forget what expired: silent workers, sessions, links, limits on attempts; and weights that were to be deleted.
    Draw the blind sample, and put the review's queue in the order that the newest verdicts give it.
    At night have old certificates checked again."""
    for step in (_forget, delete_leftovers, draw_audits, refresh):
        _alone(step)
    try:
        check_again()
    except Exception:
        logger.exception("tidying failed, trying again", step="check_again")


def _alone(step: Callable[[Session], object]) -> None:
    """One step in a transaction of its own: what breaks it holds up none of the others."""
    try:
        with transaction() as session:
            step(session)
    except Exception:
        logger.exception("tidying failed, trying again", step=step.__name__)


def _forget(session: Session) -> None:
    session.execute(delete(Worker).where(Worker.seen_at < func.now() - FORGET_WORKERS_AFTER))
    session.execute(delete(WebSession).where(WebSession.expires_at < func.now()))
    session.execute(delete(SignInLink).where(SignInLink.expires_at < func.now() - KEEP_EXPIRED_LINKS))
    session.execute(delete(AttemptLimit).where(AttemptLimit.resets_at < func.now()))
    session.execute(delete(Notice).where(Notice.created_at < func.now() - FORGET_NOTICES_AFTER))
    started = select(Run.id).where(Run.configuration["preflight"].astext == cast(Preflight.id, Text))
    old = Preflight.created_at < func.now() - FORGET_PREFLIGHTS_AFTER
    session.execute(delete(Preflight).where(old, ~started.exists()))


def sweep(heartbeat: Path) -> None:
    """One round. Postgres or Redis being away is news for the log; the next round tries again.

    A row that breaks one step holds up none of the others.
    """
    for step in (requeue_expired, resend_untaken, ask_for_due, heartbeat.touch, lambda: index_texts(INDEX_SECONDS)):
        try:
            step()
        except (OperationalError, InterfaceError, BrokerError, OSError):
            logger.warning("sweep failed, trying again", exc_info=True)
            return
        except Exception:
            logger.exception("a step of the sweep failed, trying again")


def main() -> None:
    configure_logging("housekeeping")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    heartbeat = get_settings().run_folder / "housekeeping"
    heartbeat.parent.mkdir(parents=True, exist_ok=True)
    rounds = 0
    while not ended.wait(SWEEP_SECONDS):
        sweep(heartbeat)
        rounds += 1
        if rounds % int(TIDY_SECONDS / SWEEP_SECONDS) == 0:
            tidy()


if __name__ == "__main__":
    main()
