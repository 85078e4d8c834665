"""/deletions/new confirms a deletion; /deleted lists what can be restored."""

import uuid
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, Field

from backend.deletions import queries, service
from backend.deletions.schemas import MAX_ITEMS, DeleteItems, DeletionResponse, ItemName
from backend.domain.deletions import DeletedKind, counted
from backend.studies.tables import Study
from backend.web.dependencies import ElsewhereAuthor, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.paging import After

router = APIRouter()
LISTS: Mapping[DeletedKind, tuple[str, str]] = {
    DeletedKind.RUN: ("runs", "/runs"),
    DeletedKind.ENVIRONMENT: ("environments", "/environments"),
    DeletedKind.POLICY: ("policies", "/policies"),
    DeletedKind.CHECKPOINT: ("checkpoints", "/checkpoints"),
    DeletedKind.STUDY: ("studies", "/training"),
    DeletedKind.GRADER: ("graders", "/graders"),
}
"""Plural and list of each kind of item. A study is listed by its run."""


class ChosenItems(BaseModel):
    """Items in the address of the page that confirms their deletion, and in its form."""

    run: list[ItemName] = Field(default=[], max_length=MAX_ITEMS)
    environment: list[ItemName] = Field(default=[], max_length=MAX_ITEMS)
    checkpoint: list[ItemName] = Field(default=[], max_length=MAX_ITEMS)
    study: list[ItemName] = Field(default=[], max_length=MAX_ITEMS)
    grader: list[ItemName] = Field(default=[], max_length=MAX_ITEMS)
    of_run: uuid.UUID | None = None
    """The run whose page offered the deletion, and to which it leads back."""

    def as_request(self) -> DeleteItems:
        return DeleteItems(
            runs=self.run,
            environments=self.environment,
            checkpoints=self.checkpoint,
            studies=self.study,
            graders=self.grader,
        )

    def back(self, kind: DeletedKind) -> str:
        if self.of_run and kind in (DeletedKind.CHECKPOINT, DeletedKind.STUDY):
            return f"/runs/{self.of_run}/{LISTS[kind][0]}"
        return LISTS[kind][1]


@router.get("/deletions/new", response_class=HTMLResponse)
def confirm_deletion(
    request: Request, session: SessionDep, actor: ElsewhereAuthor, chosen: Annotated[ChosenItems, Query()]
) -> HTMLResponse:
    """Show what is deleted with the chosen items, or why they cannot be."""
    plans = service.plan_items(session, chosen.as_request())
    totals: dict[str, int] = {}
    for plan in plans:
        for plural, number in plan.contents.items():
            totals[plural] = totals.get(plural, 0) + number
    kinds = {plan.kind for plan in plans}
    context = {
        "plans": plans,
        "totals": totals,
        "notes": list(dict.fromkeys(note for plan in plans for note in plan.notes)),
        "is_refused": any(plan.refusals for plan in plans),
        "title": plans[0].name
        if len(plans) == 1
        else counted(len(plans), LISTS[kinds.pop()][0] if len(kinds) == 1 else "items"),
        "list": LISTS[plans[0].kind],
        "back": chosen.back(plans[0].kind),
        "chosen": chosen.model_dump(exclude_none=True),
    }
    return page(request, "deletions/new.html", context)


@router.post("/deletions")
def delete_items(
    session: SessionDep, actor: ElsewhereAuthor, form: Annotated[ChosenItems, Depends(read_form(ChosenItems))]
) -> Response:
    made = service.delete_items(session, actor, form.as_request())
    name = made[0].name if len(made) == 1 else counted(len(made), "items")
    notice = f"{name} {'was' if len(made) == 1 else 'were'} deleted and can be restored for 30 days."
    return see_other(form.back(made[0].kind), notice, undo=f"/deletions/{made[0].request_id}/undo")


@router.post("/deletions/{request_id}/undo")
def undo_request(session: SessionDep, actor: ElsewhereAuthor, request_id: uuid.UUID) -> Response:
    """Restore all that one request deleted."""
    made = queries.deletions_of_request(session, request_id)
    kind = made[0].kind if made else DeletedKind.RUN
    item_id = made[0].item_id if made else None
    names = service.restore_deletions(session, actor, made)
    notice = f"{names[0]} was restored." if len(names) == 1 else f"{len(names)} items were restored."
    study = session.get(Study, item_id) if kind is DeletedKind.STUDY else None
    return see_other(ChosenItems(of_run=study and study.run_id).back(kind), notice)


@router.get("/deleted", response_class=HTMLResponse)
def list_deletions(request: Request, session: SessionDep, _: Viewer, after: After = None) -> HTMLResponse:
    found = queries.deletions(session, after=after)
    rows = [DeletionResponse.of_deletion(each) for each in found.items]
    next_url = f"/deleted?{urlencode({'after': found.next})}" if found.next else None
    return page(request, "deletions/list.html", {"deletions": rows, "next_url": next_url})
