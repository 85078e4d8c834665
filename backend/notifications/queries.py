"""What is asked of notices, destinations and deliveries."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload

from backend.domain.notifications.notices import NoticeKind, examples_of
from backend.errors import NotFound
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination, NoticeRead
from backend.web.paging import LIMIT, Key, Slice, slice_of

NEWEST_NOTICES = (Key(Notice.created_at), Key(Notice.id))
NEWEST_DELIVERIES = (Key(NoticeDelivery.created_at), Key(NoticeDelivery.id))


@dataclass(frozen=True, slots=True)
class Told:
    """A notice as somebody sees it."""

    notice: Notice
    is_read: bool

    @property
    def examples(self) -> list[uuid.UUID]:
        return examples_of(self.notice.evidence)


def notices(
    session: Session, person_id: uuid.UUID, *, unread: bool = False, after: str | None = None, limit: int = LIMIT
) -> Slice[Told]:
    statement = select(Notice).options(joinedload(Notice.run)).where(Notice.kind != NoticeKind.TEST)
    if unread:
        statement = statement.where(~_read_by(person_id).exists())
    found = slice_of(session, statement, NEWEST_NOTICES, after=after, limit=limit)
    ids = [notice.id for notice in found.items]
    seen = set(
        session.scalars(
            select(NoticeRead.notice_id).where(NoticeRead.person_id == person_id, NoticeRead.notice_id.in_(ids))
        )
    )
    return Slice([Told(notice, notice.id in seen) for notice in found.items], found.next)


def get_notice(session: Session, notice_id: uuid.UUID) -> Notice:
    notice = session.get(Notice, notice_id)
    if notice is None or notice.kind is NoticeKind.TEST:
        raise NotFound("There is no such notice.")
    return notice


def mark_read(session: Session, person_id: uuid.UUID, notice: Notice) -> None:
    values = {"person_id": person_id, "notice_id": notice.id}
    session.execute(insert(NoticeRead).values(**values).on_conflict_do_nothing())


def mark_all_read(session: Session, person_id: uuid.UUID) -> None:
    everything = select(literal(person_id), Notice.id).where(~_read_by(person_id).exists())
    session.execute(insert(NoticeRead).from_select(["person_id", "notice_id"], everything).on_conflict_do_nothing())


def destinations(session: Session) -> Sequence[NoticeDestination]:
    return session.scalars(select(NoticeDestination).order_by(NoticeDestination.name)).all()


def get_destination(session: Session, destination_id: uuid.UUID, *, lock: bool = False) -> NoticeDestination:
    destination = session.get(NoticeDestination, destination_id, with_for_update=lock)
    if destination is None:
        raise NotFound("There is no such destination.")
    return destination


def last_deliveries(session: Session) -> dict[uuid.UUID, NoticeDelivery]:
    """The newest of each destination."""
    newest = (
        select(NoticeDelivery.destination_id, func.max(NoticeDelivery.created_at).label("at"))
        .group_by(NoticeDelivery.destination_id)
        .subquery()
    )
    statement = (
        select(NoticeDelivery)
        .join(newest, newest.c.destination_id == NoticeDelivery.destination_id)
        .where(NoticeDelivery.created_at == newest.c.at)
        .order_by(NoticeDelivery.id)
    )
    return {delivery.destination_id: delivery for delivery in session.scalars(statement)}


def deliveries(
    session: Session, destination_id: uuid.UUID | None = None, *, after: str | None = None, limit: int = LIMIT
) -> Slice[NoticeDelivery]:
    """Newest first, with what was sent where."""
    statement = select(NoticeDelivery).options(
        joinedload(NoticeDelivery.notice), joinedload(NoticeDelivery.destination)
    )
    if destination_id is not None:
        statement = statement.where(NoticeDelivery.destination_id == destination_id)
    return slice_of(session, statement, NEWEST_DELIVERIES, after=after, limit=limit)


def get_delivery(session: Session, delivery_id: uuid.UUID, *, lock: bool = False) -> NoticeDelivery:
    """With what was sent where, as the database has it."""
    statement = (
        select(NoticeDelivery)
        .options(joinedload(NoticeDelivery.notice), joinedload(NoticeDelivery.destination))
        .where(NoticeDelivery.id == delivery_id)
        .execution_options(populate_existing=True)
    )
    delivery = session.scalar(statement.with_for_update(of=NoticeDelivery) if lock else statement)
    if delivery is None:
        raise NotFound("There is no such delivery.")
    return delivery


def _read_by(person_id: uuid.UUID) -> Select[uuid.UUID]:
    return select(NoticeRead.notice_id).where(NoticeRead.person_id == person_id, NoticeRead.notice_id == Notice.id)
