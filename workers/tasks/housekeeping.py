"""The sweeper: `python -m workers.tasks.housekeeping`. Several can run at once, because each step is idempotent."""

import signal
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy import Text, cast, delete, func, insert, select, update
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.orm import Session

from backend.checkpoints.pruning import delete_leftovers
from backend.checkpoints.transfers import wake_unfinished_transfers
from backend.core.logs import configure_logging
from backend.core.queue import count_waiting, enqueue, send_wake_up
from backend.core.row_access import hide_deleted
from backend.core.session import after_commit, transaction
from backend.core.tables import Job, Worker
from backend.deletions.tables import Deletion
from backend.domain.vocabulary import JobStatus, Queue, RunKind
from backend.graders.budgets import grade_within_budgets
from backend.notifications.outbox import send_digests
from backend.notifications.tables import Notice
from backend.results.rewards import keep_next_rewards
from backend.review.audit_sample import draw_audits
from backend.review.queue import announce_waiting, refresh
from backend.rollouts.filters import body_of
from backend.rollouts.tables import Rollout, RolloutText
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.team.tables import AttemptLimit, SignInLink, WebSession
from backend.training.tables import Preflight
from workers.tasks import leases
from workers.tasks.nightly_checks import check_again
from workers.tasks.notifications import enqueue_due

SWEEP_SECONDS = 2.0
TIDY_SECONDS = 60.0
INDEX_SECONDS = 1.0
"""Maximum time per round to index texts for the search."""
INDEX_BATCH = 500
KEEP_REWARDS_SECONDS = 5.0
"""Maximum time per minute to keep rewards of runs that an older release ended."""
INDEX_LOCK = 0x70726F63
"""Advisory lock: one process at a time builds the index."""
RESEND_AFTER = timedelta(seconds=5)
"""A wake-up without effect is sent again after this time, times the attempt, so that failures back off."""
RESEND_WHILE_BUSY_AFTER = timedelta(minutes=1)
"""The same while messages wait in the broker, which may all be for other jobs."""
KEEP_WORKERS = timedelta(minutes=2)
KEEP_PREFLIGHTS = timedelta(days=7)
"""A preflight from which a run was started is kept with the run."""
KEEP_NOTICES = timedelta(days=90)
KEEP_EXPIRED_LINKS = timedelta(days=30)
RETRY_PURGE = timedelta(days=1)
BATCH = 200

logger = structlog.get_logger(__name__)


def requeue_expired() -> int:
    """Queue leased jobs again whose worker stopped its heartbeat, or give them up after too many attempts."""
    with transaction() as session:
        expired = session.scalars(
            select(Job)
            .where(Job.status == JobStatus.LEASED, Job.lease_until < func.now())
            .with_for_update(skip_locked=True)
            .limit(BATCH)
        ).all()
        for job in expired:
            logger.warning("lease expired", job_id=str(job.id), job=job.name, owner=job.lease_owner)
            if job.attempts >= job.max_attempts:
                leases.give_up(session, job, f"Its worker died or hung {job.attempts} times.")
            else:
                leases.release(session, job, JobStatus.QUEUED)
                after_commit(session, partial(send_wake_up, job.id, job.queue))
    return len(expired)


def resend_wake_ups() -> int:
    """Send lost wake-ups of queued jobs again. While messages wait in the broker, the workers may just be busy."""
    sent = 0
    for queue in Queue:
        pause = (RESEND_WHILE_BUSY_AFTER if count_waiting(queue) else RESEND_AFTER) * func.greatest(Job.attempts, 1)
        untaken = (Job.status == JobStatus.QUEUED, Job.queue == queue, Job.sent_at < func.now() - pause)
        with transaction() as session:
            job_ids = session.scalars(select(Job.id).where(*untaken).order_by(Job.id).limit(BATCH)).all()
        for job_id in job_ids:
            send_wake_up(job_id, queue)
            with transaction() as session:
                session.execute(update(Job).where(Job.id == job_id).values(sent_at=func.now()))
        sent += len(job_ids)
    if sent:
        logger.info("wake-ups sent again", count=sent)
    return sent


def tidy() -> None:
    """Delete what has expired, draw the audit sample, start graders within their budgets, sort the review queue, notify
    members of waiting items, send digests, wake transfer reports and check old certificates at night.

    Each step has its own transaction: a failing one does not stop the others.
    """
    steps = (
        purge_deleted,
        *(delete_expired, delete_leftovers, draw_audits, grade_within_budgets, refresh, announce_waiting),
        *(send_digests, wake_unfinished_transfers),
    )
    for step in steps:
        try:
            with transaction() as session:
                hide_deleted(session)
                step(session)
        except Exception:
            logger.exception("tidying failed, trying again", step=step.__name__)
    for work in (keep_rewards, check_again):
        try:
            work()
        except Exception:
            logger.exception("tidying failed, trying again", step=work.__name__)


def keep_rewards() -> None:
    """Keep the rewards of ended runs that have none, newest first, for a few seconds."""
    until = time.monotonic() + KEEP_REWARDS_SECONDS
    has_more = True
    while has_more and time.monotonic() < until:
        with transaction() as session:
            has_more = keep_next_rewards(session)


def purge_deleted(session: Session) -> None:
    """Queue the removal of items deleted 30 days ago. One that has not ended within a day is queued again."""
    is_stuck = Deletion.purge_started_at < func.now() - RETRY_PURGE
    due = Deletion.purge_at <= func.now(), Deletion.purge_started_at.is_(None) | is_stuck
    for deletion in session.scalars(select(Deletion).where(*due).with_for_update(skip_locked=True).limit(BATCH)):
        deletion.purge_started_at = datetime.now(UTC)
        enqueue(session, "deletions.purge", queue=Queue.CPU, arguments={"deletion_id": str(deletion.id)})


def delete_expired(session: Session) -> None:
    session.execute(delete(Worker).where(Worker.seen_at < func.now() - KEEP_WORKERS))
    session.execute(delete(WebSession).where(WebSession.expires_at < func.now()))
    session.execute(delete(SignInLink).where(SignInLink.expires_at < func.now() - KEEP_EXPIRED_LINKS))
    session.execute(delete(AttemptLimit).where(AttemptLimit.resets_at < func.now()))
    session.execute(delete(Notice).where(Notice.created_at < func.now() - KEEP_NOTICES))
    started = select(Run.id).where(Run.configuration["preflight"].astext == cast(Preflight.id, Text))
    old = Preflight.created_at < func.now() - KEEP_PREFLIGHTS
    session.execute(delete(Preflight).where(old, ~started.exists()))


def index_texts(seconds: float) -> int:
    """Index the text of new conversations for about `seconds`, newest run first. Returns the number of rollouts added.

    Hand play changes while it is played and is not indexed.
    """
    last = select(func.max(RolloutText.seq)).where(RolloutText.run_id == Run.id).correlate(Run).scalar_subquery()
    done = func.coalesce(last, 0)
    newer = select(Rollout.id).where(Rollout.run_id == Run.id, Rollout.seq > done).correlate(Run).exists()
    unindexed = select(Run.id, done).where(Run.kind != RunKind.PLAY, newer).order_by(Run.created_at.desc()).limit(1)
    until = time.monotonic() + seconds
    added = 0
    while time.monotonic() < until:
        with transaction() as session:
            if not session.scalar(select(func.pg_try_advisory_xact_lock(INDEX_LOCK))):
                break
            found = session.execute(unindexed).first()
            count = add_texts(session, *found) if found else 0
        if count == 0:
            break
        added += count
    return added


def add_texts(session: Session, run_id: uuid.UUID, done: int) -> int:
    """Index one batch of a run's rollouts after number `done`. Returns their number."""
    batch = (
        select(Rollout.run_id, Rollout.seq, Rollout.messages)
        .where(Rollout.run_id == run_id, Rollout.seq > done)
        .order_by(Rollout.seq)
        .limit(INDEX_BATCH)
        .subquery()
    )
    rows = select(batch.c.run_id, batch.c.seq, body_of(batch.c.messages))
    added = insert(RolloutText).from_select(["run_id", "seq", "body"], rows).returning(RolloutText.seq)
    return len(session.execute(added).all())


def sweep(heartbeat: Path) -> None:
    """Run one round. If Postgres or Redis is away, the next round tries again. Other errors stop only their step."""
    for step in (requeue_expired, resend_wake_ups, enqueue_due, heartbeat.touch, lambda: index_texts(INDEX_SECONDS)):
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
