"""Saved views: a filter and a sort order under a name, private or shared with the team."""

import uuid

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import Conflict, NotAllowed, NotFound
from backend.rollouts.schemas import SaveView, UpdateView, View
from backend.rollouts.tables import SavedView
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor

MAX_VIEWS = 200
"""Views per person."""


def list_views(session: Session, actor: Actor) -> list[View]:
    """List the actor's own views, then shared views of others, by name."""
    statement = (
        select(SavedView, Person.name)
        .join(Person, Person.id == SavedView.person_id)
        .where(or_(SavedView.person_id == actor.person_id, SavedView.is_shared))
        .order_by((SavedView.person_id == actor.person_id).desc(), SavedView.name, SavedView.id)
        .limit(MAX_VIEWS * 2)
    )
    return [
        View.from_row(view, owner=owner, is_own=view.person_id == actor.person_id)
        for view, owner in session.execute(statement)
    ]


def save_view(session: Session, actor: Actor, request: SaveView) -> View:
    own = (SavedView.person_id == actor.person_id, SavedView.name == request.name)
    view = session.scalars(select(SavedView).where(*own)).one_or_none()
    if view is None:
        count = select(func.count()).select_from(SavedView).where(own[0])
        if (session.scalar(count) or 0) >= MAX_VIEWS:
            raise Conflict(f"You already have {MAX_VIEWS} views. Delete one first.")
        view = SavedView(person_id=actor.person_id, name=request.name)
        session.add(view)
    view.filter, view.sort, view.is_shared = request.filter, request.sort, request.is_shared
    session.flush()
    return View.from_row(view, owner=actor.name, is_own=True)


def update_view(session: Session, actor: Actor, view_id: uuid.UUID, request: UpdateView) -> View:
    view = _get_changeable(session, actor, view_id)
    if request.name and request.name != view.name:
        same = select(SavedView.id).where(SavedView.person_id == actor.person_id, SavedView.name == request.name)
        if view.person_id == actor.person_id and session.scalar(same):
            raise Conflict(f"You already have a view named {request.name}.")
        view.name = request.name
    if request.is_shared is not None:
        view.is_shared = request.is_shared
    session.flush()
    return View.from_row(view, owner=actor.name, is_own=view.person_id == actor.person_id)


def delete_view(session: Session, actor: Actor, view_id: uuid.UUID) -> View:
    view = _get_changeable(session, actor, view_id)
    deleted = View.from_row(view, owner=actor.name, is_own=view.person_id == actor.person_id)
    session.delete(view)
    session.flush()
    audit(session, actor, "view.delete", "view", view.id, name=view.name)
    return deleted


def _get_changeable(session: Session, actor: Actor, view_id: uuid.UUID) -> SavedView:
    """The actor's own view, or a shared one for administrators. Others cannot see views that are not shared."""
    view = session.get(SavedView, view_id)
    if view is None or (view.person_id != actor.person_id and not view.is_shared):
        raise NotFound("There is no such view.")
    if view.person_id != actor.person_id and not actor.role.includes(Role.ADMIN):
        raise NotAllowed("This view belongs to another member.")
    return view
