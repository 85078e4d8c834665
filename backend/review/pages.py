"""The pages of the review."""

import uuid
from collections.abc import AsyncIterable
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import REVIEW
from backend.domain.vocabulary import Verdict
from backend.review import queries, screens, service
from backend.review.schemas import (
    AssignForm,
    ClusterForm,
    ItemAssignForm,
    ReviewFilter,
    TargetForm,
    UndoForm,
    read_review_filter,
)
from backend.review.screens import address, item_page, queue_page
from backend.review.tables import ReviewItem
from backend.review.verdict_effects import aftermath_of
from backend.review.verdict_schemas import VerdictForm
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import page, render_block, see_other
from backend.web.paging import After
from backend.web.streams import live

router = APIRouter()
Chosen = Annotated[ReviewFilter, Depends(read_review_filter)]


@router.get("/review")
def show_queue(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    chosen: Chosen,
    after: After = None,
    judged: uuid.UUID | None = None,
) -> Response:
    return page(request, "review/queue.html", queue_page(session, actor, chosen, after, judged), block="suspects")


@router.get("/review/events", response_class=EventSourceResponse)
async def follow_queue(request: Request, actor: Viewer, chosen: Chosen) -> AsyncIterable[ServerSentEvent]:
    def draw(session: Session) -> dict[str, str]:
        context = queue_page(session, actor, chosen)
        return {"suspects": render_block(request, "review/queue.html", "suspects", context)}

    async for event in live(request, (REVIEW,), draw):
        yield event


@router.post("/review/target")
def set_target(
    session: SessionDep, actor: Reviewer, form: Annotated[TargetForm, Depends(read_form(TargetForm))]
) -> Response:
    service.set_target(session, actor, form.per_day)
    return see_other("/review", notice=f"Your target is {form.per_day} a day.")


@router.post("/review/assign")
def assign_waiting(
    session: SessionDep, actor: Reviewer, chosen: Chosen, form: Annotated[AssignForm, Depends(read_form(AssignForm))]
) -> Response:
    ids = service.assign_waiting(session, actor, chosen, form.person, form.count)
    return see_other(address("/review", chosen), notice=f"{len(ids)} assigned.")


@router.post("/review/undo")
def undo(
    session: SessionDep, actor: Reviewer, chosen: Chosen, form: Annotated[UndoForm, Depends(read_form(UndoForm))]
) -> Response:
    """Take back one's last verdict and show what it was about; `u` there goes on to the one before."""
    decision = service.undo(session, actor, form.verdict)
    record = decision[0]
    told = f"{_words(record.verdict).capitalize()} is taken back"
    if record.is_bulk:
        return see_other(address("/review", chosen), f"{told}, for {len(decision)} of the cluster.")
    item = session.get(ReviewItem, record.rollout_id or record.flag_id)
    if item is None:
        return see_other(f"/rollouts/{record.rollout_id}", f"{told}.")
    return see_other(address(f"/review/{item.id}", chosen), f"{told}. Judge it again, or go on.")


@router.get("/review/{item_id}")
def show_item(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    item_id: uuid.UUID,
    chosen: Chosen,
    evidence: bool = False,
    judged: uuid.UUID | None = None,
    beside: uuid.UUID | None = None,
) -> Response:
    """By the item's id; by a flag's, its evidence is shown at once."""
    item, by_flag = queries.get_item(session, item_id)
    context = item_page(session, actor, item, chosen, evidence=evidence or by_flag, judged=judged, beside=beside)
    return page(request, "review/item.html", context, block="beside" if beside else None)


@router.post("/review/{item_id}")
def judge(
    session: SessionDep,
    actor: Reviewer,
    item_id: uuid.UUID,
    chosen: Chosen,
    form: Annotated[VerdictForm, Depends(read_form(VerdictForm))],
    evidence: bool = False,
) -> Response:
    """Store the verdict and go on to the next item; `u` there takes it back."""
    item, by_flag = queries.get_item(session, item_id)
    is_blind = not (evidence or by_flag or screens.is_told(session, actor, item, chosen))
    service.judge(session, actor, item, form, is_blind=is_blind)
    return _go_on(session, actor, item, chosen, _told(session, item, form.verdict))


@router.post("/review/{item_id}/cluster")
def judge_cluster(
    session: SessionDep,
    actor: Reviewer,
    item_id: uuid.UUID,
    chosen: Chosen,
    form: Annotated[ClusterForm, Depends(read_form(ClusterForm))],
) -> Response:
    item, _ = queries.get_item(session, item_id)
    count = service.judge_cluster(session, actor, item, form.verdict)
    told = "taken back" if form.verdict is Verdict.UNSURE else f"judged {_words(form.verdict)}"
    return _go_on(session, actor, item, chosen, f"{count} of its cluster {told}")


def _told(session: Session, item: ReviewItem, verdict: Verdict) -> str:
    done = f"Judged {_words(verdict)}"
    after = aftermath_of(session, item.rollout_id) if verdict is Verdict.HACK and item.rollout_id else None
    return f"{done}, but no certificate replays it: {after.lack}" if after and after.lack else done


def _go_on(session: Session, actor: Actor, item: ReviewItem, chosen: ReviewFilter, done: str) -> Response:
    following = queries.next_id(session, chosen, actor.person_id, item)
    if following is None:
        return see_other(address("/review", chosen, judged=item.id), f"{done}. Nothing waits for review any more.")
    return see_other(address(f"/review/{following}", chosen, judged=item.id), f"{done}; here is the next.")


def _words(verdict: Verdict) -> str:
    return str(verdict).replace("_", " ")


@router.post("/review/{item_id}/assign")
def assign(
    session: SessionDep,
    actor: Reviewer,
    item_id: uuid.UUID,
    chosen: Chosen,
    form: Annotated[ItemAssignForm, Depends(read_form(ItemAssignForm))],
) -> Response:
    item, _ = queries.get_item(session, item_id)
    service.assign(session, actor, item, form.person)
    return see_other(address(f"/review/{item.id}", chosen), "Assigned.")


@router.post("/review/{item_id}/release")
def release(
    session: SessionDep,
    actor: Reviewer,
    item_id: uuid.UUID,
    chosen: Chosen,
    form: Annotated[ItemAssignForm, Depends(read_form(ItemAssignForm))],
) -> Response:
    item, _ = queries.get_item(session, item_id)
    service.release(session, actor, item, form.person)
    return see_other(address(f"/review/{item.id}", chosen), "Not assigned any more.")
