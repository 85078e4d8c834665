"""JSON of notices, of where they go, and of how each delivery went."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from backend.domain.notifications.notices import DeliveryStatus, DestinationKind, NoticeKind
from backend.notifications import queries, service
from backend.notifications.messages import absolute
from backend.notifications.queries import Told
from backend.notifications.schemas import DestinationRequest
from backend.notifications.tables import NoticeDelivery, NoticeDestination
from backend.web.dependencies import Admin, SessionDep, Viewer
from backend.web.paging import LIMIT, After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["notifications"])


class NoticeOut(BaseModel):
    id: uuid.UUID
    kind: NoticeKind
    title: str
    text: str
    url: str
    run_id: uuid.UUID | None
    evidence: dict[str, Any]
    created_at: datetime
    is_read: bool
    """By whoever asks."""

    @classmethod
    def of(cls, told: Told) -> "NoticeOut":
        notice = told.notice
        return cls(
            **{name: getattr(notice, name) for name in ("id", "kind", "title", "text", "run_id", "evidence")},
            created_at=notice.created_at,
            url=absolute(notice.path),
            is_read=told.is_read,
        )


class DestinationOut(BaseModel):
    id: uuid.UUID
    name: str
    kind: DestinationKind
    kinds: list[str]
    """Empty: all."""
    is_enabled: bool
    configuration: dict[str, Any]
    has_secret: bool
    created_at: datetime

    @classmethod
    def of(cls, destination: NoticeDestination) -> "DestinationOut":
        names = ("id", "name", "kind", "kinds", "is_enabled", "configuration", "created_at")
        return cls(**{name: getattr(destination, name) for name in names}, has_secret=destination.secret is not None)


class DeliveryOut(BaseModel):
    id: uuid.UUID
    notice_id: uuid.UUID
    kind: NoticeKind
    title: str
    destination_id: uuid.UUID
    destination: str
    status: DeliveryStatus
    attempts: int
    next_at: datetime | None
    """When it is tried again at the latest; null: not any more."""
    error: str | None
    created_at: datetime
    delivered_at: datetime | None

    @classmethod
    def of(cls, delivery: NoticeDelivery) -> "DeliveryOut":
        names = ("id", "notice_id", "destination_id", "status", "attempts", "error", "created_at", "delivered_at")
        return cls(
            **{name: getattr(delivery, name) for name in names},
            kind=delivery.notice.kind,
            title=delivery.notice.title,
            destination=delivery.destination.name,
            next_at=delivery.next_at if delivery.status is DeliveryStatus.WAITING else None,
        )


class UnreadOut(BaseModel):
    unread: int


@router.get("/notices")
def notices(
    session: SessionDep, actor: Viewer, unread: bool = False, after: After = None, limit: Limit = LIMIT
) -> Page[NoticeOut]:
    """Newest first. `unread`: only what whoever asks has not read."""
    found = queries.notices(session, actor.person_id, unread=unread, after=after, limit=limit)
    return Page(items=[NoticeOut.of(told) for told in found.items], next=found.next)


@router.post("/notices/read")
def read_all(session: SessionDep, actor: Viewer) -> UnreadOut:
    """All of them, for whoever asks."""
    queries.mark_all_read(session, actor.person_id)
    return UnreadOut(unread=0)


@router.post("/notices/{notice_id}/read")
def read_notice(session: SessionDep, actor: Viewer, notice_id: uuid.UUID) -> NoticeOut:
    notice = queries.get_notice(session, notice_id)
    queries.mark_read(session, actor.person_id, notice)
    return NoticeOut.of(Told(notice, is_read=True))


@router.get("/notifications/destinations")
def destinations(session: SessionDep, _: Admin) -> Page[DestinationOut]:
    return Page(items=[DestinationOut.of(each) for each in queries.destinations(session)])


@router.post("/notifications/destinations", status_code=201)
def add_destination(session: SessionDep, actor: Admin, form: DestinationRequest) -> DestinationOut:
    destination = service.add_destination(session, actor, form)
    session.refresh(destination)
    return DestinationOut.of(destination)


@router.get("/notifications/destinations/{destination_id}")
def destination(session: SessionDep, _: Admin, destination_id: uuid.UUID) -> DestinationOut:
    return DestinationOut.of(queries.get_destination(session, destination_id))


@router.put("/notifications/destinations/{destination_id}")
def change_destination(
    session: SessionDep, actor: Admin, destination_id: uuid.UUID, form: DestinationRequest
) -> DestinationOut:
    """All of what it shall be. An empty `secret` keeps the stored one, unless the address changes."""
    found = queries.get_destination(session, destination_id, lock=True)
    return DestinationOut.of(service.change_destination(session, actor, found, form))


@router.delete("/notifications/destinations/{destination_id}", status_code=204)
def delete_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID) -> None:
    service.delete_destination(session, actor, queries.get_destination(session, destination_id, lock=True))


@router.post("/notifications/destinations/{destination_id}/test", status_code=202)
def try_destination(session: SessionDep, actor: Admin, destination_id: uuid.UUID) -> DeliveryOut:
    """Sends a test; ask for the delivery to see how it went."""
    delivery = service.try_destination(session, actor, queries.get_destination(session, destination_id))
    return _fresh(session, delivery.id)


@router.get("/notifications/deliveries")
def deliveries(
    session: SessionDep,
    _: Admin,
    destination: Annotated[uuid.UUID | None, Query()] = None,
    after: After = None,
    limit: Limit = LIMIT,
) -> Page[DeliveryOut]:
    """Newest first."""
    found = queries.deliveries(session, destination, after=after, limit=limit)
    return Page(items=[DeliveryOut.of(each) for each in found.items], next=found.next)


@router.get("/notifications/deliveries/{delivery_id}")
def delivery(session: SessionDep, _: Admin, delivery_id: uuid.UUID) -> DeliveryOut:
    return DeliveryOut.of(queries.get_delivery(session, delivery_id))


@router.post("/notifications/deliveries/{delivery_id}/again", status_code=202)
def send_again(session: SessionDep, actor: Admin, delivery_id: uuid.UUID) -> DeliveryOut:
    return _fresh(session, service.send_again(session, actor, delivery_id).id)


def _fresh(session: SessionDep, delivery_id: uuid.UUID) -> DeliveryOut:
    """With what the database filled in."""
    session.flush()
    return DeliveryOut.of(queries.get_delivery(session, delivery_id))
