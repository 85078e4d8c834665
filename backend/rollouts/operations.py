"""What members do with rollouts and saved views."""

import uuid

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation
from backend.rollouts import references, saved_views
from backend.rollouts.filters import select_rollouts
from backend.rollouts.listing import count_rollouts as count_selected
from backend.rollouts.listing import list_rollouts as list_selected
from backend.rollouts.schemas import (
    FieldResponse,
    FilterFields,
    ListedRolloutResponse,
    RolloutCount,
    SaveView,
    SelectRollouts,
    UpdateView,
    View,
    WholeRolloutResponse,
)
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.references import find_run
from backend.runs.tables import Run
from backend.web.identity import Actor
from backend.web.paging import Page

__all__ = ["references"]


@operation("GET /rollouts", role=Role.VIEWER, tool=True)
def list_rollouts(session: Session, actor: Actor, request: SelectRollouts) -> Page[ListedRolloutResponse]:
    """List a run's rollouts. `where` filters (`has flag and win = 0`), `sort` orders, `columns` picks.

    `GET /runs/{run}/filter-words` lists the fields that they can use.
    """
    run = find_run(session, request.run_id)
    scope = scope_of(session, run)
    found = list_selected(session, run, request, scope)
    columns = scope.shown_columns(request.columns) if request.columns else None
    items = [ListedRolloutResponse.of(item, run, columns) for item in found.items]
    return Page(items=items, next=found.next, previous=found.previous)


@operation("GET /rollouts/count", role=Role.VIEWER, tool=True)
def count_rollouts(session: Session, actor: Actor, request: SelectRollouts) -> RolloutCount:
    """Count a run's rollouts that pass a filter, and all of them."""
    scope = scope_of(session, find_run(session, request.run_id))
    matching, total = (count_selected(session, select_rollouts(scope, where)) for where in (request.expression, ""))
    return RolloutCount(matching=matching, total=total)


@operation("GET /runs/{run}/filter-words", role=Role.VIEWER, tool=True)
def list_filter_fields(session: Session, actor: Actor, run: Run) -> FilterFields:
    """List the fields that filters and sort orders of a run's rollouts can use."""
    scope = scope_of(session, run)
    return FilterFields(fields=[FieldResponse.of_field(field) for field in scope.fields.values()], sorts=scope.sortable)


@operation("GET /rollouts/{rollout}", role=Role.VIEWER, tool=True)
def get_rollout(session: Session, actor: Actor, rollout: Rollout) -> WholeRolloutResponse:
    """Read one rollout with its steps, messages and tokens."""
    return WholeRolloutResponse.of(rollout)


@operation("GET /views", role=Role.VIEWER, noun="views")
def list_views(session: Session, actor: Actor) -> Page[View]:
    """List your saved views, then those that others share."""
    return Page(items=[View.of(listed) for listed in saved_views.views_for(session, actor)])


@operation("POST /views", role=Role.VIEWER, noun="views", status=201, audited=False)
def save_view(session: Session, actor: Actor, request: SaveView) -> View:
    """Save a filter and a sort order under a name. It replaces your view of the same name."""
    return View.of(saved_views.save_view(session, actor, request))


@operation("PATCH /views/{view}", role=Role.VIEWER, noun="views", audited=False)
def update_view(session: Session, actor: Actor, view: uuid.UUID, request: UpdateView) -> View:
    """Rename a view, or share it or stop sharing it."""
    return View.of(saved_views.update_view(session, actor, view, request))


@operation("DELETE /views/{view}", role=Role.VIEWER, noun="views", audited=False)
def delete_view(session: Session, actor: Actor, view: uuid.UUID) -> None:
    """Delete a view. Its rollouts stay."""
    saved_views.delete_view(session, actor, view)
