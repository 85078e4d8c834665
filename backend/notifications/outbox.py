"""Write notices and queue their deliveries in the transaction of the event; seal the secrets of destinations."""

import math
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import any_, func, literal, or_, select
from sqlalchemy.orm import Session

from backend.core import events, sealing
from backend.core.queue import NOTICE_JOB, enqueue
from backend.domain.notifications.notices import DestinationKind, NoticeKind
from backend.domain.text import plain_text
from backend.domain.vocabulary import Queue
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination
from backend.settings import get_settings

JOB_PATIENCE = timedelta(minutes=5)
"""A delivery gets another job if the last one had no effect for this long."""


def announce(
    session: Session,
    *,
    kind: NoticeKind,
    title: str,
    text: str,
    path: str,
    run_id: uuid.UUID | None = None,
    evidence: Mapping[str, object] | None = None,
    person_id: uuid.UUID | None = None,
) -> None:
    """Write a notice and queue its deliveries, in the transaction of the event that it reports.

    `title` is one line, `text` a few sentences, `path` the page to open (`/runs/…`). `person_id`: the only recipient,
    who finds it in Proctor; destinations get notices to all members only.
    """
    if not path.startswith("/"):
        raise ValueError(f"the path of a notice begins with /: {path!r}")
    notice = Notice(
        kind=kind,
        title=" ".join(plain_text(title).split())[:200],
        text=plain_text(text)[:10_000],
        path=path,
        run_id=run_id,
        evidence=_storable(evidence or {}),
        person_id=person_id,
    )
    session.add(notice)
    session.flush()
    takes_kind = or_(
        func.cardinality(NoticeDestination.kinds) == 0, literal(str(kind)) == any_(NoticeDestination.kinds)
    )
    destinations = select(NoticeDestination.id).where(NoticeDestination.is_enabled, takes_kind)
    if person_id is None:
        for destination_id in session.scalars(destinations.order_by(NoticeDestination.id)).all():
            create_delivery(session, notice.id, destination_id)
    events.announce(session, events.NOTICES)


def create_delivery(session: Session, notice_id: uuid.UUID, destination_id: uuid.UUID) -> NoticeDelivery:
    delivery = NoticeDelivery(notice_id=notice_id, destination_id=destination_id)
    session.add(delivery)
    session.flush()
    enqueue_delivery(session, delivery)
    return delivery


def enqueue_delivery(session: Session, delivery: NoticeDelivery) -> None:
    """Queue a job that sends it now. Housekeeping queues no other one for JOB_PATIENCE."""
    delivery.next_at = func.now() + JOB_PATIENCE
    enqueue(session, NOTICE_JOB, queue=Queue.CPU, arguments={"delivery_id": str(delivery.id)})


def absolute_url(path: str) -> str:
    """Return the address of a page at this installation's public address."""
    return get_settings().public_url.rstrip("/") + path


def secret_of(destination: NoticeDestination) -> str | None:
    """Decrypt a destination's secret for the job that sends. Raises SecretUnreadable."""
    if destination.secret is None:
        return None
    try:
        return sealing.unseal(destination.secret, address_of(destination.kind, destination.configuration))
    except sealing.SecretUnreadable as error:
        advice = f"Enter the secret of {destination.name} again."
        raise sealing.SecretUnreadable(f"{sealing.SecretUnreadable.__doc__} {advice}") from error


def address_of(kind: DestinationKind, configuration: Mapping[str, object]) -> str:
    """Return what a secret is bound to. It is kept only while this stays the same."""
    if kind is DestinationKind.WEBHOOK:
        return f"webhook:{configuration['url']}"
    return "smtp:{security}:{user}@{host}:{port}".format_map(configuration)


def _storable(value: object) -> Any:
    """Convert any value to JSON that Postgres can store."""
    match value:
        case str():
            return plain_text(value)
        case Mapping():
            return {plain_text(str(key)): _storable(inner) for key, inner in value.items()}
        case list() | tuple() | set():
            return [_storable(inner) for inner in value]
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int():
            return value
        case _:
            return plain_text(str(value))
