"""/runs/{id}/rollouts: the table of a run's rollouts with its filter, its columns and the views that people keep."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from backend.core.events import run_topic
from backend.domain.rollouts.fields import Field
from backend.domain.rollouts.filters import with_clause
from backend.errors import InvalidInput
from backend.rollouts import saved_views as views
from backend.rollouts.filters import WrongFilter, select_rollouts
from backend.rollouts.listing import MatchCount, RolloutList, list_rollouts, total_of
from backend.rollouts.schemas import FieldResponse
from backend.rollouts.scope import scope_of
from backend.rollouts.shortcuts import Shortcut, shortcuts
from backend.runs import queries
from backend.runs.header import RunHeader, head_blocks, run_header
from backend.runs.requests import RolloutFilter
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Viewer
from backend.web.error_pages import TookTooLong, is_timeout
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import page, render_block, see_other
from backend.web.streams import END, live

router = APIRouter()
TEMPLATE = "rollouts/list.html"


@dataclass(frozen=True, slots=True)
class FilterMistake:
    """What is wrong with a filter, and the expression cut at the place."""

    message: str
    before: str = ""
    at: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class RolloutsPage:
    """A run's rollouts as a table."""

    head: RunHeader
    run: Run
    found: RolloutList
    request: RolloutFilter
    """All of its filter is in `where`."""
    columns: Sequence[Field]
    all_columns: Sequence[Field]
    shortcuts: Sequence[Shortcut]
    fields: Sequence[FieldResponse]
    """For completion in the filter box."""
    views: Sequence[views.ListedView]
    matching: MatchCount
    total: int
    mistake: FilterMistake | None
    seen: int
    """`seq` of the run's last rollout when the page was rendered."""


@router.get("/runs/{run_id}/rollouts", response_class=HTMLResponse)
def show_rollouts(
    request: Request, run_id: uuid.UUID, session: SessionDep, actor: Viewer, wanted: Annotated[RolloutFilter, Query()]
) -> Response:
    if chosen := _choices(request, wanted):
        return see_other(f"{request.url.path}?{chosen.query()}")
    context = _context(session, actor, queries.get_run(session, run_id), wanted.as_expression())
    status = 422 if context.mistake else 200
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
            news = {"run": run, "request": wanted.as_expression(), "seen": seen}
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
    select_rollouts(scope_of(session, run), form.filter)
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
    """Mistakes in the filter are shown next to it, and so is a filter that takes too long."""
    scope = scope_of(session, run)
    found, mistake = RolloutList([], None), None
    try:
        with session.begin_nested():
            found = list_rollouts(session, run, wanted, scope, counts=True)
    except WrongFilter as error:
        place = error.expression[error.start : error.end]
        before, after = error.expression[: error.start], error.expression[error.end :]
        mistake = FilterMistake(error.message, before, place or " ", after)
    except InvalidInput as error:
        mistake = FilterMistake(" ".join(error.fields.values()) or error.message)
    except OperationalError as error:
        if not is_timeout(error):
            raise
        mistake = FilterMistake(TookTooLong().message)
    total = total_of(session, scope)
    return RolloutsPage(
        head=run_header(session, run),
        run=run,
        found=found,
        request=wanted,
        columns=scope.shown_columns(wanted.columns),
        all_columns=scope.columns,
        shortcuts=shortcuts(scope, wanted.expression),
        fields=[FieldResponse.of_field(field) for field in scope.fields.values()],
        views=views.views_for(session, actor),
        matching=found.matching or MatchCount(total),
        total=total,
        mistake=mistake,
        seen=run.next_seq - 1,
    )
