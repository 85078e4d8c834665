"""Read deletions that can be undone."""

import uuid
from collections.abc import Sequence

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, joinedload

from backend.deletions.tables import Deletion
from backend.errors import NotFound
from backend.operations.ids import find_by_end, parse_id
from backend.web.paging import Key, Slice, slice_of

NEWEST = (Key(Deletion.deleted_at), Key(Deletion.id))


def get_deletion(session: Session, text: str) -> Deletion:
    """By id or its last characters. Raises NotFound."""
    newest = select(Deletion.id).order_by(Deletion.deleted_at.desc(), Deletion.id.desc())
    key = parse_id(text) or find_by_end(session, newest, Deletion.id, text)
    found = session.scalar(_with_person(select(Deletion)).where(Deletion.id == key)) if key else None
    if found is None:
        raise NotFound("There is no such deletion. It was undone, or the item was removed after 30 days.")
    return found


def deletions(session: Session, *, after: str | None = None, limit: int = 100) -> Slice[Deletion]:
    """Newest first."""
    return slice_of(session, _with_person(select(Deletion)), NEWEST, after=after, limit=limit)


def deletions_of_request(session: Session, request_id: uuid.UUID) -> Sequence[Deletion]:
    statement = _with_person(select(Deletion)).where(Deletion.request_id == request_id)
    return session.scalars(statement.order_by(Deletion.id)).all()


def _with_person(statement: Select[Deletion]) -> Select[Deletion]:
    return statement.options(joinedload(Deletion.person))
