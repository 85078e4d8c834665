"""The job `notices.send`: one attempt of one delivery. Housekeeping enqueues deliveries that are due again."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.events import NOTICES, announce
from backend.core.sealing import SecretUnreadable
from backend.core.session import transaction
from backend.domain.notifications.notices import PAUSES_SECONDS, DeliveryStatus, DestinationKind
from backend.domain.text import plain_text
from backend.notifications.outbox import enqueue_delivery, secret_of
from backend.notifications.sending import DeliveryFailed, message_of, send_mail, send_webhook
from backend.notifications.tables import Notice, NoticeDelivery
from workers.tasks.registry import JobContext

MAX_ERROR_CHARACTERS = 2000
BATCH = 100


def run(context: JobContext) -> None:
    delivery_id = uuid.UUID(context.arguments["delivery_id"])
    with transaction() as session:
        delivery = _waiting(session, delivery_id)
        if delivery is None:
            return
        destination = delivery.destination
        message = message_of(delivery.notice, delivery.id)
        try:
            secret = secret_of(destination)
        except SecretUnreadable as error:
            _fail(session, delivery, str(error))
            return
        configuration = dict(destination.configuration)
        if delivery.person:
            configuration["recipients"] = [delivery.person.email]
        send: Callable[[], None] = partial(send_mail, configuration, message, secret)
        if destination.kind is DestinationKind.WEBHOOK:
            send = partial(send_webhook, configuration, message, secret)
    failure = None
    try:
        send()
    except DeliveryFailed as failed:
        failure = failed
    with transaction() as session:
        delivery = _waiting(session, delivery_id)
        if delivery is None:
            return
        delivery.attempts += 1
        announce(session, NOTICES)
        if failure is None:
            delivery.status, delivery.error = DeliveryStatus.DELIVERED, None
            delivery.delivered_at = func.clock_timestamp()
        elif failure.is_final or delivery.attempts > len(PAUSES_SECONDS):
            _fail(session, delivery, str(failure))
        else:
            delivery.error = plain_text(str(failure))[:MAX_ERROR_CHARACTERS]
            delivery.next_at = func.clock_timestamp() + timedelta(seconds=PAUSES_SECONDS[delivery.attempts - 1])


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The job itself failed repeatedly."""
    delivery = _waiting(session, uuid.UUID(context.arguments["delivery_id"]))
    if delivery is not None:
        _fail(session, delivery, reason)


def enqueue_due() -> int:
    """Enqueue a job for every delivery whose pause has ended, or whose job was lost. Returns their number."""
    due = select(NoticeDelivery).where(
        NoticeDelivery.status == DeliveryStatus.WAITING, NoticeDelivery.next_at < func.now()
    )
    with transaction() as session:
        found = session.scalars(due.order_by(NoticeDelivery.next_at).limit(BATCH).with_for_update(skip_locked=True))
        deliveries = found.all()
        for delivery in deliveries:
            enqueue_delivery(session, delivery)
    return len(deliveries)


def _waiting(session: Session, delivery_id: uuid.UUID) -> NoticeDelivery | None:
    """Lock the delivery. None if it is no longer waiting."""
    statement = (
        select(NoticeDelivery)
        .options(
            joinedload(NoticeDelivery.notice).joinedload(Notice.run),
            joinedload(NoticeDelivery.destination),
            joinedload(NoticeDelivery.person),
        )
        .where(NoticeDelivery.id == delivery_id, NoticeDelivery.status == DeliveryStatus.WAITING)
        .with_for_update(of=NoticeDelivery)
    )
    return session.scalars(statement).one_or_none()


def _fail(session: Session, delivery: NoticeDelivery, reason: str) -> None:
    delivery.status, delivery.error = DeliveryStatus.FAILED, plain_text(reason)[:MAX_ERROR_CHARACTERS]
    announce(session, NOTICES)
