"""Read notices, destinations and deliveries; mark notices as read."""

import uuid

from sqlalchemy import ColumnElement, exists, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, joinedload

from backend.domain.notifications.notices import HIDDEN_KINDS, DestinationKind, EmailFrequency
from backend.errors import NotFound
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination, NoticePreference, NoticeRead
from backend.operations.ids import parse_id
from backend.web.paging import LIMIT, Key, Slice, slice_of

_WITH_NOTICE_AND_DESTINATION = (
    joinedload(NoticeDelivery.notice),
    joinedload(NoticeDelivery.destination),
    joinedload(NoticeDelivery.person),
)


def is_unread(person_id: uuid.UUID) -> ColumnElement[bool]:
    return Notice.is_for(person_id) & ~exists().where(
        NoticeRead.person_id == person_id, NoticeRead.notice_id == Notice.id
    )


def list_notices(
    session: Session, person_id: uuid.UUID, *, unread: bool = False, after: str | None = None, limit: int = LIMIT
) -> Slice[tuple[Notice, bool]]:
    """List notices, newest first, and whether the member has read them."""
    statement = select(Notice).options(joinedload(Notice.run)).where(Notice.is_for(person_id))
    if unread:
        statement = statement.where(is_unread(person_id))
    newest_first = (Key(Notice.created_at), Key(Notice.id))
    page = slice_of(session, statement, newest_first, after=after, limit=limit)
    ids = [notice.id for notice in page.items]
    reads = select(NoticeRead.notice_id).where(NoticeRead.person_id == person_id, NoticeRead.notice_id.in_(ids))
    read_ids = set(session.scalars(reads))
    return Slice([(notice, notice.id in read_ids) for notice in page.items], page.next)


def get_notice(session: Session, text: str) -> Notice:
    notice_id = parse_id(text)
    notice = session.get(Notice, notice_id) if notice_id else None
    if notice is None or notice.kind in HIDDEN_KINDS:
        raise NotFound("There is no such notice.")
    return notice


def mark_read(session: Session, person_id: uuid.UUID, notice: Notice | None = None) -> None:
    """Mark one notice or all notices as read by a member. Raises NotFound for a notice to someone else."""
    if notice and notice.person_id not in (None, person_id):
        raise NotFound("There is no such notice.")
    unread = select(literal(person_id), Notice.id).where(is_unread(person_id))
    if notice:
        unread = unread.where(Notice.id == notice.id)
    session.execute(insert(NoticeRead).from_select(["person_id", "notice_id"], unread).on_conflict_do_nothing())


def preference_of(session: Session, person_id: uuid.UUID) -> NoticePreference:
    """The member's choice, or the default, which is not stored."""
    default = {"muted": [], "email": EmailFrequency.NEVER, "email_kinds": []}
    return session.get(NoticePreference, person_id) or NoticePreference(person_id=person_id, **default)


def find_mail_server(session: Session) -> NoticeDestination | None:
    """The email destination whose server sends messages to single members: the oldest that is on."""
    statement = select(NoticeDestination).where(
        NoticeDestination.kind == DestinationKind.EMAIL, NoticeDestination.is_enabled
    )
    return session.scalar(statement.order_by(NoticeDestination.created_at, NoticeDestination.id).limit(1))


def find_destination(session: Session, text: str) -> NoticeDestination | None:
    named = NoticeDestination.name == text
    if id := parse_id(text):
        named |= NoticeDestination.id == id
    return session.scalar(select(NoticeDestination).where(named).order_by(NoticeDestination.name != text).limit(1))


def get_destination(session: Session, text: str) -> NoticeDestination:
    if destination := find_destination(session, text):
        return destination
    raise NotFound("There is no such destination.")


def last_deliveries(session: Session) -> dict[uuid.UUID, NoticeDelivery]:
    """Return the newest delivery of each destination."""
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


def list_deliveries(
    session: Session, destination_id: uuid.UUID | None = None, *, after: str | None = None, limit: int = LIMIT
) -> Slice[NoticeDelivery]:
    """List deliveries with their notices and destinations, newest first."""
    statement = select(NoticeDelivery).options(*_WITH_NOTICE_AND_DESTINATION)
    if destination_id is not None:
        statement = statement.where(NoticeDelivery.destination_id == destination_id)
    newest_first = (Key(NoticeDelivery.created_at), Key(NoticeDelivery.id))
    return slice_of(session, statement, newest_first, after=after, limit=limit)


def get_delivery(session: Session, text: str, *, lock: bool = False) -> NoticeDelivery:
    """Return a delivery by id with its notice and destination, freshly read."""
    statement = select(NoticeDelivery).options(*_WITH_NOTICE_AND_DESTINATION)
    statement = statement.where(NoticeDelivery.id == parse_id(text))
    statement = statement.execution_options(populate_existing=True)
    delivery = session.scalar(statement.with_for_update(of=NoticeDelivery) if lock else statement)
    if delivery is None:
        raise NotFound("There is no such delivery.")
    return delivery
