"""/runs/{id}/rollouts: the table of a run's rollouts with its filter, its columns and the views that people keep."""

import uuid
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from backend.core.events import run_topic
from backend.domain.rollouts.filter_tokens import with_clause
from backend.domain.rollouts.filter_tree import OPERATORS
from backend.errors import InvalidInput
from backend.rollouts import queries as rollout_queries
from backend.rollouts import saved_views as views
from backend.rollouts.counts import Matching
from backend.rollouts.filter_fields import FilterScope, scope_of
from backend.rollouts.filter_shortcuts import Shortcut, shortcuts
from backend.rollouts.queries import Listed, WrongFilter
from backend.rollouts.table_columns import Column, all_columns, shown_columns, value_of
from backend.runs import queries
from backend.runs.header import RunHeader, head_blocks, run_header
from backend.runs.requests import RolloutFilter
from backend.runs.tables import Run
from backend.web.cursors import Slice
from backend.web.dependencies import SessionDep, Viewer
from backend.web.error_pages import TookTooLong, is_timeout
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import page, render_block, see_other
from backend.web.streams import END, live

router = APIRouter()
TEMPLATE = "rollouts/list.html"


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with the filter, cut at the place."""

    message: str
    before: str = ""
    at: str = ""
    behind: str = ""


@dataclass(frozen=True, slots=True)
class RolloutsPage:
    """A run's rollouts as a table."""

    head: RunHeader
    run: Run
    found: Slice[Listed]
    wanted: RolloutFilter
    """Everything that is asked for stands in `where`."""
    columns: Sequence[Column]
    all_columns: Sequence[Column]
    shortcuts: Sequence[Shortcut]
    words: Sequence[dict[str, Any]]
    """Fields for the completion."""
    views: Sequence[views.ListedView]
    matching: Matching
    total: int
    wrong: Wrong | None
    seen: int
    """Number of the run's newest rollout when the page was drawn."""
    value_of: Callable[[Listed, str], Any] = value_of


@router.get("/runs/{run_id}/rollouts", response_class=HTMLResponse)
def list_rollouts(
    request: Request, run_id: uuid.UUID, session: SessionDep, actor: Viewer, wanted: Annotated[RolloutFilter, Query()]
) -> Response:
    if chosen := _choices(request, wanted):
        return see_other(f"{request.url.path}?{chosen.query()}")
    context = _context(session, actor, queries.get_run(session, run_id), wanted.as_expression())
    status = 422 if context.wrong else 200
    return page(request, TEMPLATE, context, block="rollout_table", status=status)


@router.get("/runs/{run_id}/rollouts/events", response_class=EventSourceResponse)
async def rollout_events(
    request: Request, run_id: uuid.UUID, actor: Viewer, wanted: Annotated[RolloutFilter, Query()], seen: int = 0
) -> AsyncIterable[ServerSentEvent]:
    """The head, and how many rollouts came; where the newest are shown without a filter, the table itself."""

    def render(session: Session) -> dict[str, str]:
        run = queries.get_run(session, run_id)
        head = run_header(session, run)
        blocks = head_blocks(request, head)
        if wanted == RolloutFilter(columns=wanted.columns):
            blocks["rollout_table"] = render_block(
                request, TEMPLATE, "rollout_table", _context(session, actor, run, wanted)
            )
        else:
            news = {"run": run, "wanted": wanted.as_expression(), "seen": seen}
            blocks["rollout_news"] = render_block(request, TEMPLATE, "rollout_news", news)
        return blocks | ({END: ""} if head.is_settled else {})

    async for event in live(request, (run_topic(run_id),), render):
        yield event


@router.post("/runs/{run_id}/rollouts/views", response_class=HTMLResponse)
def save_view(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Viewer,
    form: Annotated[views.ViewForm, Depends(read_form(views.ViewForm))],
) -> Response:
    run = queries.get_run(session, run_id)
    rollout_queries.condition(scope_of(session, run), form.filter)
    view = views.save_view(session, actor, form)
    return _back(run_id, views.ListedView(view, actor.name, is_own=True).query, f"The view {view.name} is kept.")


@router.post("/runs/{run_id}/rollouts/views/{view_id}", response_class=HTMLResponse)
def change_view(
    run_id: uuid.UUID,
    view_id: uuid.UUID,
    session: SessionDep,
    actor: Viewer,
    change: Annotated[views.ViewChange, Depends(read_form(views.ViewChange))],
    query: Annotated[str, Form()] = "",
) -> Response:
    view = views.change_view(session, actor, view_id, change)
    return _back(run_id, query, f"The view is named {view.name}{' and shared' if view.is_shared else ''} now.")


@router.post("/runs/{run_id}/rollouts/views/{view_id}/delete", response_class=HTMLResponse)
def delete_view(
    run_id: uuid.UUID, view_id: uuid.UUID, session: SessionDep, actor: Viewer, query: Annotated[str, Form()] = ""
) -> Response:
    view = views.delete_view(session, actor, view_id)
    return _back(run_id, query, f"The view {view.name} is deleted. What it showed was: {view.filter or 'everything'}")


def _back(run_id: uuid.UUID, query: str, notice: str) -> Response:
    return see_other(f"/runs/{run_id}/rollouts" + (f"?{query}" if query else ""), notice)


def _choices(request: Request, wanted: RolloutFilter) -> RolloutFilter | None:
    """What a shortcut or the choice of columns changed: `set=status:status = failed`, `show=task&show=reward`."""
    clauses, shown = request.query_params.getlist("set"), request.query_params.getlist("show")
    if not clauses and not shown:
        return None
    expression = wanted.expression
    for choice in clauses:
        field, _, clause = choice.partition(":")
        expression = with_clause(expression, field, clause)
    columns = ",".join(shown) or wanted.columns
    return wanted.as_expression().model_copy(
        update={"where": expression or None, "columns": columns, "after": None, "before": None}
    )


def _context(session: Session, actor: Actor, run: Run, wanted: RolloutFilter) -> RolloutsPage:
    scope = scope_of(session, run)
    found, matching, wrong = _found(session, scope, wanted)
    total = rollout_queries.total_of(session, scope)
    return RolloutsPage(
        head=run_header(session, run),
        run=run,
        found=found,
        wanted=wanted,
        columns=shown_columns(scope, wanted.columns),
        all_columns=all_columns(scope),
        shortcuts=shortcuts(scope, wanted.expression),
        words=_words(scope),
        views=views.views_for(session, actor),
        matching=matching or Matching(total),
        total=total,
        wrong=wrong,
        seen=run.next_seq - 1,
    )


def _found(
    session: Session, scope: FilterScope, wanted: RolloutFilter
) -> tuple[Slice[Listed], Matching | None, Wrong | None]:
    """The page and how many pass the filter. What is wrong with it is shown beside it, and so is that it takes long."""
    try:
        with session.begin_nested():
            return *rollout_queries.counted_rollouts(session, scope.run, wanted, scope), None
    except WrongFilter as error:
        place = error.expression[error.start : error.end]
        cut = (error.expression[: error.start], place or " ", error.expression[error.end :])
        return Slice([], None), None, Wrong(error.message, *cut)
    except InvalidInput as error:
        return Slice([], None), None, Wrong(" ".join(error.fields.values()) or error.message)
    except OperationalError as error:
        if not is_timeout(error):
            raise
        return Slice([], None), None, Wrong(TookTooLong().message)


def _words(scope: FilterScope) -> list[dict[str, Any]]:
    return [
        {
            "name": field.name,
            "kind": str(field.kind),
            "help": field.help,
            "choices": list(field.choices),
            "operators": list(OPERATORS[field.kind]),
        }
        for field in scope.fields.values()
    ]
