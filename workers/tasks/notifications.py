"""Sending notices: one job is one attempt of one delivery; what is due again is asked for by housekeeping."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.events import NOTICES, announce
from backend.core.sealing import SecretUnreadable
from backend.core.session import transaction
from backend.domain.notifications.notices import DeliveryStatus, DestinationKind, next_pause
from backend.domain.text import plain_text
from backend.notifications.outbox import enqueue_delivery, secret_of
from backend.notifications.sending import DeliveryFailed, message_of, send_mail, send_webhook
from backend.notifications.tables import Notice, NoticeDelivery
from workers.tasks.registry import JobContext

_MAX_ERROR_CHARACTERS = 2000
_BATCH = 100


def run(context: JobContext) -> None:
    delivery_id = uuid.UUID(context.arguments["delivery_id"])
    with transaction() as session:
        send = _prepared(session, delivery_id)
    if send is None:
        return
    failure = None
    try:
        send()
    except DeliveryFailed as failed:
        failure = failed
    with transaction() as session:
        _record(session, delivery_id, failure)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The job itself broke, again and again."""
    delivery = _waiting(session, uuid.UUID(context.arguments["delivery_id"]))
    if delivery is not None:
        _fail(session, delivery, reason)


def ask_for_due() -> int:
    """A job for every delivery whose pause is over, or whose job was lost."""
    due = select(NoticeDelivery).where(
        NoticeDelivery.status == DeliveryStatus.WAITING, NoticeDelivery.next_at < func.now()
    )
    with transaction() as session:
        found = session.scalars(due.order_by(NoticeDelivery.next_at).limit(_BATCH).with_for_update(skip_locked=True))
        deliveries = found.all()
        for delivery in deliveries:
            enqueue_delivery(session, delivery)
    return len(deliveries)


def _prepared(session: Session, delivery_id: uuid.UUID) -> Callable[[], None] | None:
    """What sends it, free of rows. None: it is not waiting any more."""
    delivery = _waiting(session, delivery_id)
    if delivery is None:
        return None
    destination = delivery.destination
    message = message_of(delivery.notice, delivery.id)
    try:
        secret = secret_of(destination)
    except SecretUnreadable as error:
        _fail(session, delivery, str(error))
        return None
    if destination.kind is DestinationKind.WEBHOOK:
        return partial(send_webhook, destination.configuration["url"], message, secret)
    return partial(send_mail, destination.configuration, message, secret)


def _waiting(session: Session, delivery_id: uuid.UUID) -> NoticeDelivery | None:
    statement = (
        select(NoticeDelivery)
        .options(
            joinedload(NoticeDelivery.notice).joinedload(Notice.run),
            joinedload(NoticeDelivery.destination),
        )
        .where(NoticeDelivery.id == delivery_id, NoticeDelivery.status == DeliveryStatus.WAITING)
        .with_for_update(of=NoticeDelivery)
    )
    return session.scalars(statement).one_or_none()


def _record(session: Session, delivery_id: uuid.UUID, failure: DeliveryFailed | None) -> None:
    delivery = _waiting(session, delivery_id)
    if delivery is None:
        return
    delivery.attempts += 1
    if failure is None:
        delivery.status, delivery.error = DeliveryStatus.DELIVERED, None
        delivery.delivered_at = func.clock_timestamp()
        announce(session, NOTICES)
        return
    pause = None if failure.is_final else next_pause(delivery.attempts)
    if pause is None:
        _fail(session, delivery, str(failure))
        return
    delivery.error = _stored(str(failure))
    delivery.next_at = func.clock_timestamp() + timedelta(seconds=pause)
    announce(session, NOTICES)


def _fail(session: Session, delivery: NoticeDelivery, reason: str) -> None:
    delivery.status, delivery.error = DeliveryStatus.FAILED, _stored(reason)
    announce(session, NOTICES)


def _stored(reason: str) -> str:
    return plain_text(reason)[:_MAX_ERROR_CHARACTERS]
