"""Saved views of lists: a filter, a sort order and columns under a name, private or shared with the team."""

import uuid
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import Conflict, NotAllowed, NotFound
from backend.rollouts.schemas import SaveView, UpdateView, View
from backend.rollouts.tables import Listing, SavedView
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor

MAX_VIEWS = 200
"""Views per person."""
RESTORABLE = timedelta(days=30)
"""How long a deleted view can be restored."""


def list_views(session: Session, actor: Actor, listing: Listing | None = None) -> list[View]:
    """List the actor's own views, then shared views of others, by name. Default: of all lists."""
    statement = (
        select(SavedView, Person.name)
        .join(Person, Person.id == SavedView.person_id)
        .where(or_(SavedView.person_id == actor.person_id, SavedView.is_shared), SavedView.deleted_at.is_(None))
        .order_by((SavedView.person_id == actor.person_id).desc(), SavedView.name, SavedView.id)
        .limit(MAX_VIEWS * 2)
    )
    if listing is not None:
        statement = statement.where(SavedView.listing == listing)
    return [
        View.from_row(view, owner=owner, is_own=view.person_id == actor.person_id)
        for view, owner in session.execute(statement)
    ]


def save_view(session: Session, actor: Actor, request: SaveView) -> View:
    own = SavedView.person_id == actor.person_id, SavedView.listing == request.listing
    view = session.scalars(select(SavedView).where(*own, SavedView.name == request.name)).one_or_none()
    if view is None or view.deleted_at is not None:
        count = select(func.count()).select_from(SavedView).where(own[0], SavedView.deleted_at.is_(None))
        if (session.scalar(count) or 0) >= MAX_VIEWS:
            raise Conflict(f"You already have {MAX_VIEWS} views. Delete one first.")
    if view is None:
        view = SavedView(person_id=actor.person_id)
        session.add(view)
    for name, value in request.model_dump().items():
        setattr(view, name, value)
    view.deleted_at = None
    session.flush()
    return View.from_row(view, owner=actor.name, is_own=True)


def update_view(session: Session, actor: Actor, view_id: uuid.UUID, request: UpdateView) -> View:
    view = _get_changeable(session, actor, view_id)
    if request.name and request.name != view.name:
        same = SavedView.person_id == view.person_id, SavedView.listing == view.listing, SavedView.name == request.name
        taken = session.scalars(select(SavedView).where(*same)).one_or_none()
        if taken is not None and taken.deleted_at is None:
            raise Conflict(f"There already is a view named {request.name}.")
        if taken is not None:
            session.delete(taken)
            session.flush()
        view.name = request.name
    if request.is_shared is not None:
        view.is_shared = request.is_shared
    session.flush()
    return View.from_row(view, owner=actor.name, is_own=view.person_id == actor.person_id)


def delete_view(session: Session, actor: Actor, view_id: uuid.UUID) -> View:
    """Delete a view. It can be restored for RESTORABLE; views deleted before are removed."""
    view = _get_changeable(session, actor, view_id)
    view.deleted_at = datetime.now(UTC)
    session.execute(delete(SavedView).where(SavedView.deleted_at < view.deleted_at - RESTORABLE))
    session.flush()
    audit(session, actor, "view.delete", "view", view.id, name=view.name)
    return View.from_row(view, owner=actor.name, is_own=view.person_id == actor.person_id)


def restore_view(session: Session, actor: Actor, view_id: uuid.UUID) -> View:
    view = _get_changeable(session, actor, view_id, is_deleted=True)
    view.deleted_at = None
    session.flush()
    audit(session, actor, "view.restore", "view", view.id, name=view.name)
    return View.from_row(view, owner=actor.name, is_own=view.person_id == actor.person_id)


def _get_changeable(session: Session, actor: Actor, view_id: uuid.UUID, *, is_deleted: bool = False) -> SavedView:
    """The actor's own view, or a shared one for administrators. Others cannot see views that are not shared."""
    view = session.get(SavedView, view_id)
    if view is None or (view.person_id != actor.person_id and not view.is_shared):
        raise NotFound("There is no such view.")
    if (view.deleted_at is not None) is not is_deleted:
        raise NotFound("This view is not deleted." if is_deleted else "This view was deleted.")
    if view.person_id != actor.person_id and not actor.role.includes(Role.ADMIN):
        raise NotAllowed("This view belongs to another member.")
    return view
