"""Read shared links."""

from contextlib import suppress
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.errors import NotFound
from backend.operations.declaration import reference
from backend.shares.schemas import ListShares
from backend.shares.tables import Share
from backend.web.paging import Key, Slice, slice_of

NEWEST = (Key(Share.created_at), Key(Share.id))


@reference(Share, "Id of a shared link.")
def get_share(session: Session, text: str) -> Share:
    with suppress(ValueError):
        statement = select(Share).options(joinedload(Share.creator)).where(Share.id == UUID(text))
        if share := session.scalars(statement).one_or_none():
            return share
    raise NotFound("There is no such link.")


def list_shares(session: Session, request: ListShares) -> Slice[Share]:
    """Links to items that the session's person sees, newest first."""
    statement = select(Share).options(joinedload(Share.creator))
    if request.active:
        statement = statement.where(Share.revoked_at.is_(None), Share.expires_at > func.now())
    return slice_of(session, statement, NEWEST, after=request.after, limit=request.limit)
