"""Read notices, choose where they are sent, and see how each delivery went. Changes are audited."""

from sqlalchemy import case, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core import sealing
from backend.core.events import NOTICES, announce
from backend.domain.notifications.notices import DeliveryStatus, DestinationKind, NoticeKind
from backend.domain.vocabulary import Role
from backend.errors import Conflict, InvalidInput
from backend.notifications import queries
from backend.notifications.outbox import absolute_url, address_of, create_delivery, enqueue_delivery
from backend.notifications.schemas import (
    SETTINGS_PATH,
    DeliveryResponse,
    DestinationRequest,
    DestinationResponse,
    DestinationSettings,
    EmailRequest,
    ListDeliveries,
    ListNotices,
    MarkRead,
    NoticeResponse,
    PreferencesRequest,
    PreferencesResponse,
    UnreadResponse,
    WebhookRequest,
)
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination, NoticePreference
from backend.operations.declaration import operation, reference
from backend.web.audit import audit
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
    unread = select(func.count(Notice.id)).where(queries.is_unread(actor.person_id))
    return UnreadResponse(unread=session.scalar(unread) or 0)


@operation("POST /notices/{notice}/read", role=Role.VIEWER, page="/notices", audited=False)
def read_notice(session: Session, actor: Actor, notice: Notice) -> NoticeResponse:
    """Mark a notice as read by you and return it."""
    queries.mark_read(session, actor.person_id, notice)
    return NoticeResponse.from_row(notice, url=absolute_url(notice.path), is_read=True)


@operation("GET /notices/preferences", role=Role.VIEWER, command="notifications preferences")
def get_preferences(session: Session, actor: Actor) -> PreferencesResponse:
    """Show what you are notified of, in Proctor and by email."""
    preference = queries.preference_of(session, actor.person_id)
    return PreferencesResponse.from_row(preference, has_mail_server=queries.find_mail_server(session) is not None)


@operation(
    "PUT /notices/preferences",
    role=Role.VIEWER,
    command="notifications prefer",
    page="/notices",
    notice="Your preferences are stored.",
    audited=False,
)
def set_preferences(session: Session, actor: Actor, request: PreferencesRequest) -> PreferencesResponse:
    """Choose which notices you see in Proctor and which you get by email. This replaces all preferences."""
    values = {"muted": [*map(str, request.muted)], "email": request.email}
    values["email_kinds"] = [*map(str, request.email_kinds)]
    statement = insert(NoticePreference).values(person_id=actor.person_id, **values)
    # a digest sums up what comes after it was chosen
    begins = case((NoticePreference.email == request.email, NoticePreference.digest_at), else_=func.now())
    session.execute(statement.on_conflict_do_update(index_elements=["person_id"], set_=values | {"digest_at": begins}))
    session.expire_all()
    return get_preferences(session, actor)


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
    return _save(session, actor, request)


@operation("PUT /notifications/webhooks", role=Role.ADMIN, command="notifications webhook", notice=_SET, audited=False)
def set_webhook(session: Session, actor: Actor, request: WebhookRequest) -> DestinationResponse:
    """Post notices to an address. With a secret, each request is signed."""
    return _set(session, actor, DestinationKind.WEBHOOK, request)


@operation("PUT /notifications/emails", role=Role.ADMIN, command="notifications email", notice=_SET, audited=False)
def set_email(session: Session, actor: Actor, request: EmailRequest) -> DestinationResponse:
    """Send notices by email."""
    return _set(session, actor, DestinationKind.EMAIL, request)


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
    return _save(session, actor, request, destination)


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
    session.refresh(destination, with_for_update=True)
    _audit(session, actor, "notifications.delete_destination", destination)
    session.execute(delete(NoticeDestination).where(NoticeDestination.id == destination.id))
    announce(session, NOTICES)


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
    notice = Notice(
        kind=NoticeKind.TEST,
        title="A test from Proctor",
        text=f"{actor.name} sent this test. If you can read it, the destination “{destination.name}” works.",
        path=SETTINGS_PATH,
        evidence={},
    )
    session.add(notice)
    session.flush()
    delivery = create_delivery(session, notice.id, destination.id)
    announce(session, NOTICES)
    _audit(session, actor, "notifications.test", destination)
    return DeliveryResponse.of_delivery(queries.get_delivery(session, str(delivery.id)))


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
    delivery = queries.get_delivery(session, str(delivery.id), lock=True)
    if delivery.status is DeliveryStatus.WAITING and delivery.attempts == 0:
        raise Conflict("This notice is already queued for delivery.")
    delivery.status, delivery.attempts, delivery.delivered_at = DeliveryStatus.WAITING, 0, None
    enqueue_delivery(session, delivery)
    announce(session, NOTICES)
    _audit(session, actor, "notifications.send_again", delivery.destination)
    session.flush()
    return DeliveryResponse.of_delivery(queries.get_delivery(session, str(delivery.id)))


def _save(
    session: Session, actor: Actor, request: DestinationRequest, destination: NoticeDestination | None = None
) -> DestinationResponse:
    """Add a destination, or change the given one. Its secret is kept only while its address stays the same."""
    action = "notifications.change_destination" if destination else "notifications.add_destination"
    if destination is None:
        destination = NoticeDestination(kind=request.kind, created_by=actor.person_id)
    else:
        session.refresh(destination, with_for_update=True)
        if request.kind is not destination.kind:
            message = f"The kind of this destination is {destination.kind}. Add another one."
            raise InvalidInput(fields={"kind": message})
    same_name = select(NoticeDestination.id).where(NoticeDestination.name == request.name)
    if destination.id:
        same_name = same_name.where(NoticeDestination.id != destination.id)
    if session.scalar(same_name):
        raise InvalidInput(fields={"name": "Another destination has this name."})
    configuration, before = request.configuration(), destination.configuration
    is_moved = before and address_of(request.kind, before) != address_of(request.kind, configuration)
    if request.forget_secret or is_moved:
        destination.secret = None
    if secret := request.secret.get_secret_value().strip():
        destination.secret = sealing.seal(secret, address_of(request.kind, configuration))
    destination.name, destination.configuration = request.name, configuration
    destination.kinds = list(dict.fromkeys(str(kind) for kind in request.kinds))
    destination.is_enabled = request.is_enabled
    session.add(destination)
    session.flush()
    session.refresh(destination)
    _audit(session, actor, action, destination)
    return DestinationResponse.of(destination)


def _set(session: Session, actor: Actor, kind: DestinationKind, settings: DestinationSettings) -> DestinationResponse:
    """Change the destination of this name or id, or add one."""
    request = DestinationRequest(kind=kind, **dict(settings))
    if known := queries.find_destination(session, request.name):
        request = request.model_copy(update={"name": known.name})
    return _save(session, actor, request, known)


def _audit(session: Session, actor: Actor, action: str, destination: NoticeDestination) -> None:
    """Record a change without the address, which is often a secret itself."""
    kind = str(destination.kind)
    audit(session, actor, action, "destination", destination.id, name=destination.name, destination=kind)
