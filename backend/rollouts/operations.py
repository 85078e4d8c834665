"""The JSON API of rollouts and of saved views."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from backend.domain.rollouts.filter_tree import OPERATORS
from backend.domain.vocabulary import Verdict
from backend.rollouts import queries as rollout_queries
from backend.rollouts import saved_views
from backend.rollouts.filter_fields import scope_of
from backend.rollouts.ordering import sortable
from backend.rollouts.table_columns import shown_columns, value_of
from backend.runs import queries
from backend.runs.requests import RolloutFilter
from backend.runs.responses import RolloutAnswer, RolloutDetailAnswer
from backend.web.dependencies import SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1")


class RolloutQuery(RolloutFilter):
    """Rollouts of one run."""

    run_id: uuid.UUID


class ListedRolloutAnswer(RolloutAnswer):
    """A rollout in a list, with what was said of it."""

    flags: list[str]
    """Detectors that flagged it."""
    verdict: Verdict | None
    """The newest."""
    judges: dict[str, float | None]
    """Scores by judge."""
    questions: dict[str, str | None]
    """Answers by question."""
    values: dict[str, Any] | None = None
    """What stands in the columns that were asked for."""


class CountAnswer(BaseModel):
    """How many rollouts of a run pass a filter."""

    matching: int
    total: int


class FieldAnswer(BaseModel):
    """Something that a filter may ask about."""

    name: str
    kind: str
    help: str
    choices: list[str]
    operators: list[str]


class FilterWordsAnswer(BaseModel):
    """What filters and orders of one run may say."""

    fields: list[FieldAnswer]
    sorts: list[str]


@router.get("/rollouts", tags=["rollouts"])
def list_rollouts(
    session: SessionDep, _: Viewer, wanted: Annotated[RolloutQuery, Query()]
) -> Page[ListedRolloutAnswer]:
    """A run's rollouts: `where` filters (`has flag and win = 0 and tokens > 200`), `sort` orders, `columns` picks."""
    run = queries.get_run(session, wanted.run_id)
    scope = scope_of(session, run)
    found = rollout_queries.rollouts(session, run, wanted, scope)
    columns = shown_columns(scope, wanted.columns) if wanted.columns else None
    items = []
    for item in found.items:
        values = {column.key: value_of(item, column.key) for column in columns} if columns else None
        said = {"flags": list(item.flags), "verdict": item.verdict, "judges": item.scores, "questions": item.answers}
        answer = RolloutAnswer.of(run, item.rollout).model_dump()
        items.append(ListedRolloutAnswer(**answer, **said, values=values))
    return Page(items=items, next=found.next, previous=found.previous)


@router.get("/rollouts/count", tags=["rollouts"])
def count_rollouts(session: SessionDep, _: Viewer, wanted: Annotated[RolloutQuery, Query()]) -> CountAnswer:
    """How many rollouts of a run pass the filter, and how many there are."""
    run = queries.get_run(session, wanted.run_id)
    found = rollout_queries.count(session, run, wanted.expression)
    return CountAnswer(matching=found, total=rollout_queries.count(session, run))


@router.get("/runs/{run_id}/filter-words", tags=["rollouts"])
def get_filter_words(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> FilterWordsAnswer:
    """The fields by which this run's rollouts can be filtered and sorted."""
    scope = scope_of(session, queries.get_run(session, run_id))
    fields = [
        FieldAnswer(
            name=field.name,
            kind=field.kind,
            help=field.help,
            choices=list(field.choices),
            operators=list(OPERATORS[field.kind]),
        )
        for field in scope.fields.values()
    ]
    return FilterWordsAnswer(fields=fields, sorts=sortable(scope))


@router.get("/rollouts/{rollout_id}", tags=["rollouts"])
def get_rollout(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> RolloutDetailAnswer:
    """One rollout whole: steps, messages, tokens."""
    rollout = rollout_queries.get_rollout(session, rollout_id)
    return RolloutDetailAnswer.of(rollout.run, rollout)


class ViewAnswer(BaseModel):
    """A saved view."""

    id: uuid.UUID
    name: str
    filter: str
    sort: str
    is_shared: bool
    is_own: bool
    owner: str
    created_at: datetime


@router.get("/views", tags=["rollouts"])
def list_views(session: SessionDep, actor: Viewer) -> list[ViewAnswer]:
    """One's own saved views, then those that others share."""
    return [_view(listed) for listed in saved_views.views_for(session, actor)]


@router.post("/views", status_code=201, tags=["rollouts"])
def save_view(session: SessionDep, actor: Viewer, form: saved_views.ViewForm) -> ViewAnswer:
    """Keep a filter and an order under a name; a second one of the same name replaces the first."""
    return _view(saved_views.ListedView(saved_views.save_view(session, actor, form), actor.name, is_own=True))


@router.patch("/views/{view_id}", tags=["rollouts"])
def change_view(view_id: uuid.UUID, session: SessionDep, actor: Viewer, change: saved_views.ViewChange) -> ViewAnswer:
    """Rename a view, share it or keep it to oneself."""
    view = saved_views.change_view(session, actor, view_id, change)
    return _view(saved_views.ListedView(view, actor.name, is_own=view.person_id == actor.person_id))


@router.delete("/views/{view_id}", status_code=204, tags=["rollouts"])
def delete_view(view_id: uuid.UUID, session: SessionDep, actor: Viewer) -> None:
    """Delete a view. What it showed stays."""
    saved_views.delete_view(session, actor, view_id)


def _view(listed: saved_views.ListedView) -> ViewAnswer:
    same = {name: getattr(listed.view, name) for name in ("id", "name", "filter", "sort", "is_shared", "created_at")}
    return ViewAnswer(**same, is_own=listed.is_own, owner=listed.owner)
