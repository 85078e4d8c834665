"""The parts of /runs around its table: filter, columns, order and saved views."""

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Form
from fastapi.responses import Response
from sqlalchemy.orm import Session

from backend.domain.runs.fields import FILTER_FIELDS, RUN_FIELDS, columns_of
from backend.errors import InvalidInput
from backend.rollouts import saved_views
from backend.rollouts.schemas import FieldResponse, SaveView, UpdateView
from backend.rollouts.tables import Listing
from backend.runs import queries
from backend.runs.fields import condition_of, sort_keys
from backend.runs.schemas import RunListQuery
from backend.web.dependencies import SessionDep, Viewer
from backend.web.filters import WrongFilter
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import see_other
from backend.web.paging import Slice

router = APIRouter()
_FIELDS = [FieldResponse.of(field).model_dump(mode="json") for field in FILTER_FIELDS.values()]
_CHOICES = [field for field in RUN_FIELDS.values() if field.is_column and field.name != "name"]


def run_list(session: Session, actor: Actor, wanted: RunListQuery, show: Sequence[str]) -> dict[str, object]:
    """Read the list. Mistakes in the filter, the order and the columns are shown next to it."""
    columns, unknown = columns_of(show or (wanted.columns or "").split(","))
    if show:
        wanted = wanted.model_copy(update={"columns": ",".join(field.name for field in columns)})
    mistakes = [f"There is no column `{name[:60]}`. The list is shown without it." for name in unknown[:5]]
    try:
        sort_keys(wanted.sort)
    except InvalidInput as error:
        mistakes.append(f"{' '.join(error.fields.values())} The newest runs are shown first.")
        wanted = wanted.model_copy(update={"sort": RunListQuery().sort, "after": None})
    found: Slice[queries.ListedRun] = Slice([], None)
    place = slice(0)
    unused = () if len(actor.access.names) > 1 else ("project",)  # one project is never mentioned
    try:
        found = queries.list_runs(session, wanted, columns, actor.project_id)
    except WrongFilter as error:
        mistakes.append(error.message)
        place = error.place
    return {
        "listed": found.items,
        "next": found.next,
        "wanted": wanted,
        "columns": columns,
        "all_columns": [
            *(each for each in _CHOICES if each.name not in unused),
            *(field for field in columns if field.name not in RUN_FIELDS),
        ],
        "fields": [each for each in _FIELDS if each["name"] not in unused],  # for completion in the filter box
        "views": saved_views.list_views(session, actor, Listing.RUNS),
        "mistakes": mistakes,
        "place": place,
    }


@router.post("/runs/views")
def save_view(session: SessionDep, actor: Viewer, form: Annotated[SaveView, Depends(read_form(SaveView))]) -> Response:
    condition_of(form.filter)
    view = saved_views.save_view(session, actor, form.model_copy(update={"listing": Listing.RUNS}))
    return _back(view.query, f"Saved the view {view.name}.")


@router.post("/runs/views/{view_id}")
def change_view(
    session: SessionDep,
    actor: Viewer,
    view_id: uuid.UUID,
    change: Annotated[UpdateView, Depends(read_form(UpdateView))],
    query: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    view = saved_views.update_view(session, actor, view_id, change)
    return _back(query, f"Updated the view {view.name}.")


@router.post("/runs/views/{view_id}/delete")
def delete_view(
    session: SessionDep, actor: Viewer, view_id: uuid.UUID, query: Annotated[str, Form(max_length=10_000)] = ""
) -> Response:
    saved_views.delete_view(session, actor, view_id)
    return _back("&".join(filter(None, (query, f"deleted_view={view_id}"))))


@router.post("/runs/views/{view_id}/restore")
def restore_view(session: SessionDep, actor: Viewer, view_id: uuid.UUID) -> Response:
    view = saved_views.restore_view(session, actor, view_id)
    return _back(view.query, f"Restored the view {view.name}.")


def _back(query: str, notice: str = "") -> Response:
    return see_other("/runs" + (f"?{query}" if query else ""), notice)
