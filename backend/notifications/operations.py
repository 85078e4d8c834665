"""Read notices, choose where they are sent, and see how each delivery went."""

from sqlalchemy.orm import Session

from backend.domain.notifications.notices import DestinationKind
from backend.domain.vocabulary import Role
from backend.notifications import queries, service
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
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination
from backend.operations.declaration import operation, reference
from backend.operations.ids import parse_id
from backend.web.identity import Actor
from backend.web.paging import Page

_POLL = "/notifications/deliveries/{id}"
_SET = "The destination {name} is set. Test it: proctor notifications test {name}"


@reference(Notice, "Id of a notice.")
def find_notice(session: Session, text: str) -> Notice:
    return queries.get_notice(session, parse_id(text))


@reference(NoticeDestination, "Name or id of a destination.")
def find_destination(session: Session, text: str) -> NoticeDestination:
    return queries.get_destination(session, text)


@reference(NoticeDelivery, "Id of a delivery.")
def find_delivery(session: Session, text: str) -> NoticeDelivery:
    return queries.get_delivery(session, parse_id(text))


@operation("GET /notices", role=Role.VIEWER, command="notifications list")
def list_notices(session: Session, actor: Actor, request: ListNotices) -> Page[NoticeResponse]:
    """List notices, newest first."""
    page = queries.list_notices(
        session, actor.person_id, unread=request.unread, after=request.after, limit=request.limit
    )
    return Page(items=[NoticeResponse.of_view(view) for view in page.items], next=page.next)


@operation(
    "POST /notices/read",
    role=Role.VIEWER,
    command="notifications read",
    notice="Marked as read. Unread: {unread}.",
    audited=False,
)
def mark_read(session: Session, actor: Actor, request: MarkRead) -> UnreadResponse:
    """Mark a notice, or all notices, as read by you."""
    if request.notice:
        queries.mark_read(session, actor.person_id, queries.get_notice(session, request.notice))
    else:
        queries.mark_all_read(session, actor.person_id)
    return UnreadResponse(unread=queries.count_unread(session, actor.person_id))


@operation("POST /notices/{notice}/read", role=Role.VIEWER, audited=False)
def read_notice(session: Session, actor: Actor, notice: Notice) -> NoticeResponse:
    """Mark a notice as read by you and return it."""
    queries.mark_read(session, actor.person_id, notice)
    return NoticeResponse.of_view(queries.NoticeView(notice, is_read=True))


@operation("GET /notifications/destinations", role=Role.ADMIN, command="notifications destinations")
def list_destinations(session: Session, actor: Actor) -> Page[DestinationResponse]:
    """List the destinations of notices by name."""
    return Page(items=[DestinationResponse.of(each) for each in queries.list_destinations(session)])


@operation("POST /notifications/destinations", role=Role.ADMIN, status=201, audited=False)
def add_destination(session: Session, actor: Actor, request: DestinationRequest) -> DestinationResponse:
    """Add a webhook or a mail server that notices are sent to."""
    destination = service.add_destination(session, actor, request)
    session.refresh(destination)
    return DestinationResponse.of(destination)


@operation("PUT /notifications/webhooks", role=Role.ADMIN, command="notifications webhook", notice=_SET, audited=False)
def set_webhook(session: Session, actor: Actor, request: WebhookRequest) -> DestinationResponse:
    """Post notices to an address. With a secret, each request is signed."""
    return _set(session, actor, DestinationRequest(kind=DestinationKind.WEBHOOK, **dict(request)))


@operation("PUT /notifications/emails", role=Role.ADMIN, command="notifications email", notice=_SET, audited=False)
def set_email(session: Session, actor: Actor, request: EmailRequest) -> DestinationResponse:
    """Send notices by email."""
    return _set(session, actor, DestinationRequest(kind=DestinationKind.EMAIL, **dict(request)))


def _set(session: Session, actor: Actor, request: DestinationRequest) -> DestinationResponse:
    destination = service.set_destination(session, actor, request)
    session.refresh(destination)
    return DestinationResponse.of(destination)


@operation("GET /notifications/destinations/{destination}", role=Role.ADMIN)
def get_destination(session: Session, actor: Actor, destination: NoticeDestination) -> DestinationResponse:
    """Show a destination. Its secret is never shown."""
    return DestinationResponse.of(destination)


@operation("PUT /notifications/destinations/{destination}", role=Role.ADMIN, audited=False)
def change_destination(
    session: Session, actor: Actor, destination: NoticeDestination, request: DestinationRequest
) -> DestinationResponse:
    """Replace the settings of a destination. An empty `secret` keeps the stored one, unless the address changes."""
    return DestinationResponse.of(service.change_destination(session, actor, destination, request))


@operation(
    "DELETE /notifications/destinations/{destination}",
    role=Role.ADMIN,
    command="notifications delete",
    notice="The destination {destination} was deleted.",
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
    audited=False,
)
def test_destination(session: Session, actor: Actor, destination: NoticeDestination) -> DeliveryResponse:
    """Send a test. The command exits with 1 if the first attempt fails."""
    return _queued(session, service.test_destination(session, actor, destination))


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
    audited=False,
)
def resend_delivery(session: Session, actor: Actor, delivery: NoticeDelivery) -> DeliveryResponse:
    """Send a delivery again. The command exits with 1 if the first attempt fails."""
    return _queued(session, service.resend(session, actor, delivery.id))


def _queued(session: Session, delivery: NoticeDelivery) -> DeliveryResponse:
    session.flush()
    return DeliveryResponse.of_delivery(queries.get_delivery(session, delivery.id))
