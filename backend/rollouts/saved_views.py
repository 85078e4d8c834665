"""Saved views: a filter and a sort order under a name, for oneself or for the whole team."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import Conflict, NotAllowed, NotFound
from backend.rollouts.schemas import SaveView, UpdateView
from backend.rollouts.tables import SavedView
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor

MAX_VIEWS = 200
"""Views of one person."""


@dataclass(frozen=True, slots=True)
class ListedView:
    """A view in a list."""

    id: uuid.UUID
    name: str
    filter: str
    sort: str
    is_shared: bool
    created_at: datetime
    owner: str
    is_own: bool

    @classmethod
    def of(cls, view: SavedView, owner: str, actor: Actor) -> "ListedView":
        same = (view.id, view.name, view.filter, view.sort, view.is_shared, view.created_at)
        return cls(*same, owner, is_own=view.person_id == actor.person_id)

    @property
    def query(self) -> str:
        """For the address of a run's rollouts."""
        values = {"where": self.filter, "sort": self.sort}
        return urlencode({name: value for name, value in values.items() if value})


def views_for(session: Session, actor: Actor) -> list[ListedView]:
    """One's own, then shared ones of others; by name."""
    statement = (
        select(SavedView, Person.name)
        .join(Person, Person.id == SavedView.person_id)
        .where(or_(SavedView.person_id == actor.person_id, SavedView.is_shared))
        .order_by((SavedView.person_id == actor.person_id).desc(), SavedView.name, SavedView.id)
        .limit(MAX_VIEWS * 2)
    )
    return [ListedView.of(view, owner, actor) for view, owner in session.execute(statement)]


def save_view(session: Session, actor: Actor, request: SaveView) -> ListedView:
    view = _own(session, actor, request.name)
    if view is None:
        if len(session.scalars(select(SavedView.id).where(SavedView.person_id == actor.person_id)).all()) >= MAX_VIEWS:
            raise Conflict(f"You already have {MAX_VIEWS} views. Delete one first.")
        view = SavedView(person_id=actor.person_id, name=request.name)
        session.add(view)
    view.filter, view.sort, view.is_shared = request.filter, request.sort, request.is_shared
    session.flush()
    return ListedView.of(view, actor.name, actor)


def update_view(session: Session, actor: Actor, view_id: uuid.UUID, request: UpdateView) -> ListedView:
    view = _changeable(session, actor, view_id)
    if request.name and request.name != view.name:
        if view.person_id == actor.person_id and _own(session, actor, request.name):
            raise Conflict(f"You already have a view named {request.name}.")
        view.name = request.name
    if request.is_shared is not None:
        view.is_shared = request.is_shared
    session.flush()
    return ListedView.of(view, actor.name, actor)


def delete_view(session: Session, actor: Actor, view_id: uuid.UUID) -> ListedView:
    view = _changeable(session, actor, view_id)
    deleted = ListedView.of(view, actor.name, actor)
    session.delete(view)
    session.flush()
    audit(session, actor, "view.delete", "view", view.id, name=view.name)
    return deleted


def _own(session: Session, actor: Actor, name: str) -> SavedView | None:
    mine = select(SavedView).where(SavedView.person_id == actor.person_id, SavedView.name == name)
    return session.scalars(mine).one_or_none()


def _changeable(session: Session, actor: Actor, view_id: uuid.UUID) -> SavedView:
    """One's own, or a shared one for administrators. To everyone else, a view that is not shared does not exist."""
    view = session.get(SavedView, view_id)
    if view is None or (view.person_id != actor.person_id and not view.is_shared):
        raise NotFound("There is no such view.")
    if view.person_id != actor.person_id and not actor.role.includes(Role.ADMIN):
        raise NotAllowed("This view belongs to another member.")
    return view
