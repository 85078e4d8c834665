"""Saved views of the lists of runs, environments and checkpoints. Those of rollouts belong to the page of their run."""

import uuid
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Form
from fastapi.responses import Response

from backend.checkpoints.fields import CHECKPOINT_TABLE
from backend.environments.fields import ENVIRONMENT_TABLE
from backend.errors import InvalidInput
from backend.rollouts import saved_views
from backend.rollouts.schemas import SaveView, UpdateView
from backend.rollouts.tables import Listing
from backend.runs.fields import RUN_TABLE
from backend.web.dependencies import SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.item_table import ItemTable
from backend.web.page import see_other

router = APIRouter()
LISTS: Mapping[Listing, tuple[str, ItemTable]] = {
    Listing.RUNS: ("/runs", RUN_TABLE),
    Listing.ENVIRONMENTS: ("/environments", ENVIRONMENT_TABLE),
    Listing.CHECKPOINTS: ("/checkpoints/list", CHECKPOINT_TABLE),
}
"""Address and fields of each list."""
Query = Annotated[str, Form(max_length=10_000)]


@router.post("/views")
def save_view(session: SessionDep, actor: Viewer, form: Annotated[SaveView, Depends(read_form(SaveView))]) -> Response:
    if form.listing not in LISTS:
        raise InvalidInput(fields={"listing": "Save views of rollouts on the page of a run."})
    _, table = LISTS[form.listing]
    table.condition_of(form.filter)
    view = saved_views.save_view(session, actor, form)
    return _back(view.listing, view.query, f"Saved the view {view.name}.")


@router.post("/views/{view_id}")
def change_view(
    session: SessionDep,
    actor: Viewer,
    view_id: uuid.UUID,
    change: Annotated[UpdateView, Depends(read_form(UpdateView))],
    query: Query = "",
) -> Response:
    view = saved_views.update_view(session, actor, view_id, change)
    return _back(view.listing, query, f"Updated the view {view.name}.")


@router.post("/views/{view_id}/delete")
def delete_view(session: SessionDep, actor: Viewer, view_id: uuid.UUID, query: Query = "") -> Response:
    view = saved_views.delete_view(session, actor, view_id)
    return _back(view.listing, "&".join(filter(None, (query, f"deleted_view={view_id}"))))


@router.post("/views/{view_id}/restore")
def restore_view(session: SessionDep, actor: Viewer, view_id: uuid.UUID) -> Response:
    view = saved_views.restore_view(session, actor, view_id)
    return _back(view.listing, view.query, f"Restored the view {view.name}.")


def _back(listing: Listing, query: str, notice: str = "") -> Response:
    address = LISTS[listing][0] if listing in LISTS else "/runs"
    return see_other(address + (f"?{query}" if query else ""), notice)
