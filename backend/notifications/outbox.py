"""The outbox: a notice is a row of the caller's transaction; jobs send it to the destinations after the commit."""

import math
import uuid
from datetime import timedelta
from typing import Any

from sqlalchemy import any_, func, literal, or_, select
from sqlalchemy.orm import Session

from backend.core import events
from backend.core.queue import NOTICE_JOB, enqueue
from backend.domain.notifications.notices import NoticeKind
from backend.domain.text import plain_text
from backend.domain.vocabulary import Queue
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination

JOB_PATIENCE = timedelta(minutes=5)
"""A delivery whose job led to nothing for so long gets another."""
_MAX_TITLE = 200
_MAX_TEXT = 10_000


def announce(
    session: Session,
    *,
    kind: NoticeKind,
    title: str,
    text: str,
    path: str,
    run_id: uuid.UUID | None = None,
    evidence: dict[str, Any] | None = None,
) -> None:
    """Tell people: `title` is one line, `text` a few sentences, `path` the page to open (`/runs/…`).

    Call it in the transaction of what happened: rolled back, nothing was told.
    """
    if not path.startswith("/"):
        raise ValueError(f"the path of a notice begins with /: {path!r}")
    notice = Notice(
        kind=kind,
        title=" ".join(plain_text(title).split())[:_MAX_TITLE],
        text=plain_text(text)[:_MAX_TEXT],
        path=path,
        run_id=run_id,
        evidence=storable(evidence or {}),
    )
    session.add(notice)
    session.flush()
    for destination_id in _destinations(session, kind):
        ask_for_delivery(session, notice.id, destination_id)
    events.announce(session, events.NOTICES)


def ask_for_delivery(session: Session, notice_id: uuid.UUID, destination_id: uuid.UUID) -> NoticeDelivery:
    """A delivery and its job."""
    delivery = NoticeDelivery(notice_id=notice_id, destination_id=destination_id)
    session.add(delivery)
    session.flush()
    ask_for_job(session, delivery)
    return delivery


def ask_for_job(session: Session, delivery: NoticeDelivery) -> None:
    """A job that sends it now. Until the patience is over nobody asks for another."""
    delivery.next_at = func.now() + JOB_PATIENCE
    enqueue(session, NOTICE_JOB, queue=Queue.CPU, arguments={"delivery_id": str(delivery.id)})


def storable(value: Any) -> Any:
    """As JSON that Postgres takes, whatever the value holds."""
    match value:
        case str():
            return plain_text(value)
        case dict():
            return {plain_text(str(key)): storable(inner) for key, inner in value.items()}
        case list() | tuple() | set():
            return [storable(inner) for inner in value]
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int():
            return value
        case _:
            return plain_text(str(value))


def _destinations(session: Session, kind: NoticeKind) -> list[uuid.UUID]:
    wants_it = or_(func.cardinality(NoticeDestination.kinds) == 0, literal(str(kind)) == any_(NoticeDestination.kinds))
    statement = select(NoticeDestination.id).where(NoticeDestination.is_enabled, wants_it)
    return list(session.scalars(statement.order_by(NoticeDestination.id)))
