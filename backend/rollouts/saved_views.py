"""Saved views: a filter and an order under a name, one's own or the whole team's."""

import uuid
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.vocabulary import Role
from backend.errors import Conflict, NotAllowed, NotFound
from backend.rollouts.tables import SavedView
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor

MOST = 200
"""Views a person may keep."""


class ViewForm(BaseModel):
    """A view to keep. A second one of the same name replaces one's first."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")]
    filter: Annotated[str, Field(max_length=MAX_LENGTH)] = ""
    sort: Annotated[str, Field(max_length=100)] = ""
    is_shared: bool = False


class ViewChange(BaseModel):
    """What is to become of a view; what is left out stays."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    name: Annotated[str | None, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")] = None
    is_shared: bool | None = None


@dataclass(frozen=True, slots=True)
class ListedView:
    """A view as a list shows it."""

    view: SavedView
    owner: str
    is_own: bool

    @property
    def query(self) -> str:
        """For the address of a run's rollouts."""
        asked = {"where": self.view.filter, "sort": self.view.sort}
        return urlencode({key: value for key, value in asked.items() if value})


def views_for(session: Session, actor: Actor) -> list[ListedView]:
    """One's own, then what others share; by name."""
    statement = (
        select(SavedView, Person.name)
        .join(Person, Person.id == SavedView.person_id)
        .where(or_(SavedView.person_id == actor.person_id, SavedView.is_shared))
        .order_by((SavedView.person_id == actor.person_id).desc(), SavedView.name, SavedView.id)
        .limit(MOST * 2)
    )
    found = session.execute(statement)
    return [ListedView(view, owner, view.person_id == actor.person_id) for view, owner in found]


def save_view(session: Session, actor: Actor, form: ViewForm) -> SavedView:
    view = _own(session, actor, form.name)
    if view is None:
        if len(session.scalars(select(SavedView.id).where(SavedView.person_id == actor.person_id)).all()) >= MOST:
            raise Conflict(f"You keep {MOST} views already; delete one first.")
        view = SavedView(person_id=actor.person_id, name=form.name)
        session.add(view)
    view.filter, view.sort, view.is_shared = form.filter, form.sort, form.is_shared
    session.flush()
    return view


def change_view(session: Session, actor: Actor, view_id: uuid.UUID, change: ViewChange) -> SavedView:
    view = _changeable(session, actor, view_id)
    if change.name and change.name != view.name:
        if view.person_id == actor.person_id and _own(session, actor, change.name):
            raise Conflict(f"You have a view named {change.name} already.")
        view.name = change.name
    if change.is_shared is not None:
        view.is_shared = change.is_shared
    session.flush()
    return view


def delete_view(session: Session, actor: Actor, view_id: uuid.UUID) -> SavedView:
    view = _changeable(session, actor, view_id)
    session.delete(view)
    session.flush()
    audit(session, actor, "view.delete", "view", view.id, name=view.name)
    return view


def _own(session: Session, actor: Actor, name: str) -> SavedView | None:
    mine = select(SavedView).where(SavedView.person_id == actor.person_id, SavedView.name == name)
    return session.scalars(mine).one_or_none()


def _changeable(session: Session, actor: Actor, view_id: uuid.UUID) -> SavedView:
    """One's own; an administrator also what others share. What is not shared does not exist for anybody else."""
    view = session.get(SavedView, view_id)
    if view is None or (view.person_id != actor.person_id and not view.is_shared):
        raise NotFound("There is no such view.")
    if view.person_id != actor.person_id and not actor.role.includes(Role.ADMIN):
        raise NotAllowed("This view is somebody else's.")
    return view
