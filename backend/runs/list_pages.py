"""Saved views of the list of runs."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Form
from fastapi.responses import Response

from backend.rollouts import saved_views
from backend.rollouts.schemas import SaveView, UpdateView
from backend.rollouts.tables import Listing
from backend.runs.fields import condition_of
from backend.web.dependencies import SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import see_other

router = APIRouter()


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
