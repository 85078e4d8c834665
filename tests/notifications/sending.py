"""Destinations, a notice, and carrying deliveries out as a worker does."""

import uuid
from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, joinedload

from backend.core import sealing
from backend.core.queue import NOTICE_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.notifications.notices import DestinationKind, NoticeKind
from backend.domain.vocabulary import JobStatus
from backend.notifications.outbox import address_of, announce
from backend.notifications.tables import NoticeDelivery, NoticeDestination
from workers.tasks.registry import JobContext, find_body

RECIPIENTS = ["ana@example.org", "rae@example.org"]


def webhook(session: Session, url: str, *, secret: str = "", kinds: tuple[str, ...] = ()) -> NoticeDestination:
    configuration = {"url": url}
    return _add(session, DestinationKind.WEBHOOK, "chat", configuration, secret, kinds)


def email(
    session: Session, port: int, *, security: str = "none", user: str = "", secret: str = ""
) -> NoticeDestination:
    configuration = {
        "host": "127.0.0.1",
        "port": port,
        "security": security,
        "user": user,
        "sender": "proctor@example.org",
        "recipients": RECIPIENTS,
    }
    return _add(session, DestinationKind.EMAIL, "mail", configuration, secret, ())


def _add(
    session: Session,
    kind: DestinationKind,
    name: str,
    configuration: dict[str, object],
    secret: str,
    kinds: tuple[str, ...],
) -> NoticeDestination:
    sealed = sealing.seal(secret, address_of(kind, configuration)) if secret else None
    place = NoticeDestination(kind=kind, name=name, configuration=configuration, secret=sealed, kinds=list(kinds))
    session.add(place)
    session.flush()
    return place


NAMED = [str(uuid.UUID(int=number)) for number in range(1, 6)]
"""Rollouts."""


def tell(
    session: Session, title: str = "game is paused", *, run_id: uuid.UUID | None = None, path: str = "/runs/1"
) -> None:
    announce(
        session,
        kind=NoticeKind.ALARM,
        title=title,
        text="The reward jumped.",
        path=path,
        run_id=run_id,
        evidence={"step": 7, "rollouts": NAMED},
    )


def carry_out() -> int:
    """Every job that waits, once. Returns how many there were."""
    with transaction() as session:
        waiting = select(Job).where(Job.name == NOTICE_JOB, Job.status == JobStatus.QUEUED).order_by(Job.id)
        jobs = session.scalars(waiting).all()
        for job in jobs:
            job.status = JobStatus.DONE
    for job in jobs:
        find_body(job.name)(JobContext(job.id, None, job.arguments, 1))
    return len(jobs)


def only_delivery() -> NoticeDelivery:
    with transaction() as session:
        return session.scalars(select(NoticeDelivery).options(joinedload(NoticeDelivery.notice))).one()


def let_the_pause_pass() -> None:
    with transaction() as session:
        session.execute(update(NoticeDelivery).values(next_at=func.now() - timedelta(seconds=1)))
