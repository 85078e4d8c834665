"""Add, change, delete and test destinations; resend deliveries. Each change is audited."""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from backend.core import sealing
from backend.core.events import NOTICES, announce
from backend.domain.notifications.notices import DeliveryStatus, DestinationKind, NoticeKind
from backend.errors import Conflict, InvalidInput
from backend.notifications import queries
from backend.notifications.outbox import address_of, create_delivery, enqueue_delivery
from backend.notifications.schemas import DestinationRequest, DestinationSettings
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination
from backend.web.audit import audit
from backend.web.identity import Actor

SETTINGS_PATH = "/settings/notifications"


def save_destination(
    session: Session, actor: Actor, request: DestinationRequest, destination: NoticeDestination | None = None
) -> NoticeDestination:
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
    return destination


def set_destination(
    session: Session, actor: Actor, kind: DestinationKind, settings: DestinationSettings
) -> NoticeDestination:
    """Change the destination of this name or id, or add one."""
    request = DestinationRequest(kind=kind, **dict(settings))
    if known := queries.find_destination(session, request.name):
        request = request.model_copy(update={"name": known.name})
    return save_destination(session, actor, request, known)


def delete_destination(session: Session, actor: Actor, destination: NoticeDestination) -> None:
    """Delete a destination with its secret and deliveries. Notices stay."""
    session.refresh(destination, with_for_update=True)
    _audit(session, actor, "notifications.delete_destination", destination)
    session.execute(delete(NoticeDestination).where(NoticeDestination.id == destination.id))
    announce(session, NOTICES)


def test_destination(session: Session, actor: Actor, destination: NoticeDestination) -> NoticeDelivery:
    """Send a notice to this destination only, whatever kinds it selects."""
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
    return queries.get_delivery(session, str(delivery.id))


def resend(session: Session, actor: Actor, delivery: NoticeDelivery) -> NoticeDelivery:
    """Send a delivery again that was delivered or given up."""
    delivery = queries.get_delivery(session, str(delivery.id), lock=True)
    if delivery.status is DeliveryStatus.WAITING and delivery.attempts == 0:
        raise Conflict("This notice is already queued for delivery.")
    delivery.status, delivery.attempts, delivery.delivered_at = DeliveryStatus.WAITING, 0, None
    enqueue_delivery(session, delivery)
    announce(session, NOTICES)
    _audit(session, actor, "notifications.send_again", delivery.destination)
    session.flush()
    return queries.get_delivery(session, str(delivery.id))


def _audit(session: Session, actor: Actor, action: str, destination: NoticeDestination) -> None:
    """Record a change without the address, which is often a secret itself."""
    kind = str(destination.kind)
    audit(session, actor, action, "destination", destination.id, name=destination.name, destination=kind)
