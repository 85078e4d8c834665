"""Read notices, choose where they are sent, and see how each delivery went."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.notifications.notices import DestinationKind, NoticeKind
from backend.domain.vocabulary import Role
from backend.notifications import queries, service
from backend.notifications.outbox import absolute_url
from backend.notifications.schemas import (
    DeliveryResponse,
    DestinationRequest,
    DestinationResponse,
    EmailRequest,
    ListDeliveries,
    ListNotices,
    MarkRead,
    NoticeResponse,
    UnreadResponse,
    WebhookRequest,
)
from backend.notifications.service import SETTINGS_PATH
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination
from backend.operations.declaration import operation, reference
from backend.web.identity import Actor
from backend.web.paging import Page

_POLL = "/notifications/deliveries/{id}"
_SET = "The destination {name} is set. Test it: proctor notifications test {name}"


reference(Notice, "Id of a notice.")(queries.get_notice)
reference(NoticeDestination, "Name or id of a destination.")(queries.get_destination)
reference(NoticeDelivery, "Id of a delivery.")(queries.get_delivery)


@operation("GET /notices", role=Role.VIEWER, command="notifications list")
def list_notices(session: Session, actor: Actor, request: ListNotices) -> Page[NoticeResponse]:
    """List notices, newest first."""
    page = queries.list_notices(
        session, actor.person_id, unread=request.unread, after=request.after, limit=request.limit
    )
    notices = [
        NoticeResponse.from_row(notice, url=absolute_url(notice.path), is_read=is_read)
        for notice, is_read in page.items
    ]
    return Page(items=notices, next=page.next)


@operation(
    "POST /notices/read",
    role=Role.VIEWER,
    command="notifications read",
    page="/notices",
    notice="Marked as read. Unread: {unread}.",
    audited=False,
)
def mark_read(session: Session, actor: Actor, request: MarkRead) -> UnreadResponse:
    """Mark a notice, or all notices, as read by you."""
    notice = queries.get_notice(session, str(request.notice)) if request.notice else None
    queries.mark_read(session, actor.person_id, notice)
    unread = select(func.count(Notice.id)).where(Notice.kind != NoticeKind.TEST, queries.is_unread(actor.person_id))
    return UnreadResponse(unread=session.scalar(unread) or 0)


@operation("POST /notices/{notice}/read", role=Role.VIEWER, page="/notices", audited=False)
def read_notice(session: Session, actor: Actor, notice: Notice) -> NoticeResponse:
    """Mark a notice as read by you and return it."""
    queries.mark_read(session, actor.person_id, notice)
    return NoticeResponse.from_row(notice, url=absolute_url(notice.path), is_read=True)


@operation("GET /notifications/destinations", role=Role.ADMIN, command="notifications destinations")
def list_destinations(session: Session, actor: Actor) -> Page[DestinationResponse]:
    """List the destinations of notices by name."""
    destinations = session.scalars(select(NoticeDestination).order_by(NoticeDestination.name))
    return Page(items=[DestinationResponse.of(each) for each in destinations])


@operation(
    "POST /notifications/destinations",
    role=Role.ADMIN,
    status=201,
    page=SETTINGS_PATH,
    notice="{name} was added. Send it a test.",
    audited=False,
)
def add_destination(session: Session, actor: Actor, request: DestinationRequest) -> DestinationResponse:
    """Add a webhook or a mail server that notices are sent to."""
    return DestinationResponse.of(service.save_destination(session, actor, request))


@operation("PUT /notifications/webhooks", role=Role.ADMIN, command="notifications webhook", notice=_SET, audited=False)
def set_webhook(session: Session, actor: Actor, request: WebhookRequest) -> DestinationResponse:
    """Post notices to an address. With a secret, each request is signed."""
    return DestinationResponse.of(service.set_destination(session, actor, DestinationKind.WEBHOOK, request))


@operation("PUT /notifications/emails", role=Role.ADMIN, command="notifications email", notice=_SET, audited=False)
def set_email(session: Session, actor: Actor, request: EmailRequest) -> DestinationResponse:
    """Send notices by email."""
    return DestinationResponse.of(service.set_destination(session, actor, DestinationKind.EMAIL, request))


@operation("GET /notifications/destinations/{destination}", role=Role.ADMIN)
def get_destination(session: Session, actor: Actor, destination: NoticeDestination) -> DestinationResponse:
    """Show a destination. Its secret is never shown."""
    return DestinationResponse.of(destination)


@operation(
    "PUT /notifications/destinations/{destination}",
    role=Role.ADMIN,
    page=SETTINGS_PATH,
    notice="{name} was changed.",
    audited=False,
)
def change_destination(
    session: Session, actor: Actor, destination: NoticeDestination, request: DestinationRequest
) -> DestinationResponse:
    """Replace the settings of a destination. An empty `secret` keeps the stored one, unless the address changes."""
    return DestinationResponse.of(service.save_destination(session, actor, request, destination))


@operation(
    "DELETE /notifications/destinations/{destination}",
    role=Role.ADMIN,
    command="notifications delete",
    page=SETTINGS_PATH,
    notice="The destination was deleted.",
    audited=False,
)
def delete_destination(session: Session, actor: Actor, destination: NoticeDestination) -> None:
    """Delete a destination with its secret and deliveries."""
    service.delete_destination(session, actor, destination)


@operation(
    "POST /notifications/destinations/{destination}/test",
    role=Role.ADMIN,
    command="notifications test",
    status=202,
    poll=_POLL,
    page=SETTINGS_PATH,
    notice="A test was sent to {destination}. See its status under Deliveries.",
    audited=False,
)
def test_destination(session: Session, actor: Actor, destination: NoticeDestination) -> DeliveryResponse:
    """Send a test. The command exits with 1 if the first attempt fails."""
    return DeliveryResponse.of_delivery(service.test_destination(session, actor, destination))


@operation("GET /notifications/deliveries", role=Role.ADMIN, command="notifications deliveries")
def list_deliveries(session: Session, actor: Actor, request: ListDeliveries) -> Page[DeliveryResponse]:
    """List deliveries, newest first."""
    page = queries.list_deliveries(session, request.destination, after=request.after, limit=request.limit)
    return Page(items=[DeliveryResponse.of_delivery(each) for each in page.items], next=page.next)


@operation("GET /notifications/deliveries/{delivery}", role=Role.ADMIN)
def get_delivery(session: Session, actor: Actor, delivery: NoticeDelivery) -> DeliveryResponse:
    """Show a delivery."""
    return DeliveryResponse.of_delivery(delivery)


@operation(
    "POST /notifications/deliveries/{delivery}/again",
    role=Role.ADMIN,
    command="notifications resend",
    status=202,
    poll=_POLL,
    page=SETTINGS_PATH,
    notice="“{title}” is sent again to {destination}.",
    audited=False,
)
def resend_delivery(session: Session, actor: Actor, delivery: NoticeDelivery) -> DeliveryResponse:
    """Send a delivery again. The command exits with 1 if the first attempt fails."""
    return DeliveryResponse.of_delivery(service.resend(session, actor, delivery))
