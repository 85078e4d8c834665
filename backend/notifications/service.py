"""Changes of where notices go, trying a destination, and sending again. Each is audited."""

import uuid

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from backend.core.events import NOTICES, announce
from backend.domain.notifications.notices import DeliveryStatus, NoticeKind
from backend.errors import Conflict, InvalidInput
from backend.notifications import queries
from backend.notifications.outbox import ask_for_delivery, ask_for_job
from backend.notifications.schemas import DestinationRequest
from backend.notifications.secrets import is_same_place, seal
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination
from backend.web.audit import audit
from backend.web.identity import Actor

SETTINGS_PATH = "/settings/notifications"


class NothingToSendAgain(Conflict):
    """This notice is on its way already."""


def add_destination(session: Session, actor: Actor, request: DestinationRequest) -> NoticeDestination:
    destination = NoticeDestination(kind=request.kind, created_by=actor.person_id)
    _apply(session, destination, request)
    session.add(destination)
    session.flush()
    _audit(session, actor, "notifications.add_destination", destination)
    return destination


def change_destination(
    session: Session, actor: Actor, destination: NoticeDestination, request: DestinationRequest
) -> NoticeDestination:
    if request.kind is not destination.kind:
        raise InvalidInput(fields={"kind": f"This destination is of the kind {destination.kind}; add another one."})
    _apply(session, destination, request)
    session.flush()
    _audit(session, actor, "notifications.change_destination", destination)
    return destination


def delete_destination(session: Session, actor: Actor, destination: NoticeDestination) -> None:
    """With its secret and its deliveries; notices stay."""
    _audit(session, actor, "notifications.delete_destination", destination)
    session.execute(delete(NoticeDestination).where(NoticeDestination.id == destination.id))
    announce(session, NOTICES)


def try_destination(session: Session, actor: Actor, destination: NoticeDestination) -> NoticeDelivery:
    """A notice that only this destination gets, whatever it chose."""
    notice = Notice(
        kind=NoticeKind.TEST,
        title="A test from Proctor",
        text=f"{actor.name} asked for this. If you can read it, the destination “{destination.name}” works.",
        path=SETTINGS_PATH,
        evidence={},
    )
    session.add(notice)
    session.flush()
    delivery = ask_for_delivery(session, notice.id, destination.id)
    announce(session, NOTICES)
    _audit(session, actor, "notifications.test", destination)
    return delivery


def send_again(session: Session, actor: Actor, delivery_id: uuid.UUID) -> NoticeDelivery:
    """One that was given up or delivered, once more from the beginning."""
    delivery = queries.get_delivery(session, delivery_id, lock=True)
    if delivery.status is DeliveryStatus.WAITING and delivery.attempts == 0:
        raise NothingToSendAgain
    delivery.status, delivery.attempts, delivery.delivered_at = DeliveryStatus.WAITING, 0, None
    ask_for_job(session, delivery)
    announce(session, NOTICES)
    _audit(session, actor, "notifications.send_again", delivery.destination)
    return delivery


def _apply(session: Session, destination: NoticeDestination, request: DestinationRequest) -> None:
    same_name = select(NoticeDestination.id).where(NoticeDestination.name == request.name)
    if destination.id:
        same_name = same_name.where(NoticeDestination.id != destination.id)
    if session.scalar(same_name):
        raise InvalidInput(fields={"name": "There is a destination of this name already."})
    configuration = request.configuration()
    before = destination.configuration or None
    if request.forget_secret or (before and not is_same_place(request.kind, before, configuration)):
        destination.secret = None
    if secret := request.secret.get_secret_value().strip():
        destination.secret = seal(secret, request.kind, configuration)
    destination.name, destination.configuration = request.name, configuration
    destination.kinds = list(dict.fromkeys(str(kind) for kind in request.kinds))
    destination.is_enabled = request.is_enabled


def _audit(session: Session, actor: Actor, action: str, destination: NoticeDestination) -> None:
    """Without the address, which often is a secret of its own."""
    audit(
        session, actor, action, "destination", destination.id, name=destination.name, destination=str(destination.kind)
    )
