"""/runs/{id}/rollouts: the table of a run's rollouts with its filter, columns and saved views; /help/filters."""

import uuid
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from backend.core.events import topic_of
from backend.domain.rollouts.filters import clauses_of, subject_of
from backend.errors import InvalidInput, NotFound
from backend.rollouts import saved_views
from backend.rollouts.filters import select_rollouts
from backend.rollouts.queries import MatchCount, RolloutList, list_rollouts, shown_columns, total_of
from backend.rollouts.schemas import FieldResponse, SaveView, UpdateView
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Listing
from backend.runs import queries
from backend.runs.header import head_blocks, run_header
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT
from backend.web.dependencies import SessionDep, Viewer
from backend.web.error_pages import TookTooLong, is_timeout
from backend.web.filters import WrongFilter
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import page, render_block, see_other
from backend.web.streams import END, live

router = APIRouter()
TEMPLATE = "rollouts/list.html"
FILTER_REFERENCE = PROJECT_ROOT / "docs" / "filters.md"


@router.get("/runs/{run_id}/rollouts", response_class=HTMLResponse)
def show_rollouts(
    request: Request, run_id: uuid.UUID, session: SessionDep, actor: Viewer, filter: Annotated[RolloutFilter, Query()]
) -> Response:
    context = _context(session, actor, queries.get_run(session, run_id), filter.as_expression())
    return page(request, TEMPLATE, context, block="rollout_table", status=422 if context["mistake"] else 200)


@router.get("/runs/{run_id}/rollouts/choose", response_class=HTMLResponse)
def choose_rollouts(
    request: Request, run_id: uuid.UUID, session: SessionDep, actor: Viewer, filter: Annotated[RolloutFilter, Query()]
) -> Response:
    """Show the table with a shortcut or a choice of columns: `set=status:status = failed`, `show=task&show=reward`."""
    queries.get_run(session, run_id)
    expression = filter.expression
    for choice in request.query_params.getlist("set"):
        field, _, clause = choice.partition(":")
        clauses = clauses_of(expression)
        kept = [f"({expression})"] if clauses is None else [part for part in clauses if subject_of(part) != field]
        expression = " and ".join([*kept, clause] if clause else kept)
    columns = ",".join(request.query_params.getlist("show")) or filter.columns
    changes = {"where": expression or None, "columns": columns, "after": None, "before": None}
    chosen = filter.as_expression().model_copy(update=changes)
    return see_other(f"/runs/{run_id}/rollouts?{chosen.query()}")


@router.get("/runs/{run_id}/rollouts/events", response_class=EventSourceResponse)
async def rollout_events(
    request: Request, run_id: uuid.UUID, actor: Viewer, filter: Annotated[RolloutFilter, Query()], seen: int = 0
) -> AsyncIterable[ServerSentEvent]:
    """The head, and the number of new rollouts. Without a filter and in the default order: the table itself."""

    def render(session: Session) -> dict[str, str]:
        run = queries.get_run(session, run_id)
        head = run_header(session, run)
        blocks = head_blocks(request, head)
        if filter == RolloutFilter(columns=filter.columns):
            blocks["rollout_table"] = render_block(
                request, TEMPLATE, "rollout_table", _context(session, actor, run, filter)
            )
        else:
            news = {"run": run, "filter": filter.as_expression(), "seen": seen}
            blocks["rollout_news"] = render_block(request, TEMPLATE, "rollout_news", news)
        return blocks | ({END: ""} if head.is_settled else {})

    async for event in live(request, (topic_of("run", run_id),), render):
        yield event


@router.post("/runs/{run_id}/rollouts/views", response_class=HTMLResponse)
def save_view(
    run_id: uuid.UUID, session: SessionDep, actor: Viewer, form: Annotated[SaveView, Depends(read_form(SaveView))]
) -> Response:
    run = queries.get_run(session, run_id)
    select_rollouts(scope_of(session, run), form.filter)
    view = saved_views.save_view(session, actor, form)
    return _back(run_id, view.query, f"Saved the view {view.name}.")


@router.post("/runs/{run_id}/rollouts/views/{view_id}", response_class=HTMLResponse)
def change_view(
    run_id: uuid.UUID,
    view_id: uuid.UUID,
    session: SessionDep,
    actor: Viewer,
    change: Annotated[UpdateView, Depends(read_form(UpdateView))],
    query: Annotated[str, Form()] = "",
) -> Response:
    view = saved_views.update_view(session, actor, view_id, change)
    return _back(run_id, query, f"Updated the view {view.name}.")


@router.post("/runs/{run_id}/rollouts/views/{view_id}/delete", response_class=HTMLResponse)
def delete_view(
    run_id: uuid.UUID, view_id: uuid.UUID, session: SessionDep, actor: Viewer, query: Annotated[str, Form()] = ""
) -> Response:
    view = saved_views.delete_view(session, actor, view_id)
    return _back(run_id, query, f"Deleted the view {view.name}. Its filter was: {view.filter or 'all rollouts'}")


def _back(run_id: uuid.UUID, query: str, notice: str) -> Response:
    return see_other(f"/runs/{run_id}/rollouts" + (f"?{query}" if query else ""), notice)


def _context(session: Session, actor: Actor, run: Run, filter: RolloutFilter) -> dict[str, object]:
    """Mistakes in the filter are shown next to it, and so is a timeout."""
    scope = scope_of(session, run)
    columns = shown_columns(scope, filter.columns)
    found, mistake, place = RolloutList([], None), "", slice(0)
    try:
        with session.begin_nested():
            found = list_rollouts(session, run, filter, scope, counts=True)
    except WrongFilter as error:
        mistake, place = error.message, error.place
    except InvalidInput as error:
        mistake = " ".join(error.fields.values()) or error.message
    except OperationalError as error:
        if not is_timeout(error):
            raise
        mistake = TookTooLong().message
    total = total_of(session, scope)
    return {
        "head": run_header(session, run),
        "run": run,
        "found": found,
        "filter": filter,
        "columns": columns,
        "all_columns": scope.columns,
        "shortcuts": scope.shortcuts(filter.clauses),
        # for completion in the filter box
        "fields": [FieldResponse.of(field).model_dump(mode="json") for field in scope.fields.values()],
        "views": saved_views.list_views(session, actor, Listing.ROLLOUTS),
        "matching": found.matching or MatchCount(total),
        "total": total,
        "mistake": mistake,
        "place": place,
        "seen": run.next_seq - 1,  # the last rollout when the page was rendered
    }


@router.get("/help/filters", response_class=HTMLResponse)
def show_filter_help(request: Request, _: Viewer) -> HTMLResponse:
    if not FILTER_REFERENCE.is_file():
        raise NotFound("The documentation is not installed here. See docs/filters.md in the source code.")
    return page(request, "rollouts/help.html", {"reference": FILTER_REFERENCE.read_text()})
