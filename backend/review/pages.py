"""Pages of review: the queue, an item, fixtures, safeguards of a run, and the work of the team."""

import uuid
from collections.abc import AsyncIterable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import REVIEW
from backend.domain.vocabulary import Verdict
from backend.environments.queries import get_environment
from backend.environments.tables import Environment
from backend.errors import NotFound
from backend.review import fixtures, judged_curves, queries, screens, service, verdicts
from backend.review.fixtures import effects_of
from backend.review.safeguards import safeguards_of
from backend.review.schemas import (
    AssignForm,
    AssignItem,
    ChangeBound,
    ClusterVerdict,
    KeepFixture,
    Order,
    ReviewFilter,
    UndoVerdict,
    VerdictRequest,
    WithdrawForm,
    WriteComment,
)
from backend.review.screens import address, item_page, queue_page
from backend.review.tables import ReviewItem, VerdictFixture
from backend.review.team_report import team_review
from backend.runs.tables import Run
from backend.web.dependencies import Author, Reviewer, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.formats import words
from backend.web.identity import Actor
from backend.web.page import page, see_other
from backend.web.paging import After
from backend.web.streams import live_blocks

router = APIRouter()
WithdrawalForm = Annotated[WithdrawForm, Depends(read_form(WithdrawForm))]
BoundForm = Annotated[ChangeBound, Depends(read_form(ChangeBound))]
KeepForm = Annotated[KeepFixture, Depends(read_form(KeepFixture))]
AssignmentForm = Annotated[AssignItem, Depends(read_form(AssignItem))]
ClusterVerdictForm = Annotated[ClusterVerdict, Depends(read_form(ClusterVerdict))]
VerdictForm = Annotated[VerdictRequest, Depends(read_form(VerdictRequest))]
UndoForm = Annotated[UndoVerdict, Depends(read_form(UndoVerdict))]
CommentForm = Annotated[WriteComment, Depends(read_form(WriteComment))]
AssignNextForm = Annotated[AssignForm, Depends(read_form(AssignForm))]
Chosen = Annotated[ReviewFilter, Query()]


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
    read = partial(queue_page, actor=actor, chosen=chosen)
    async for event in live_blocks(request, (REVIEW,), "review/queue.html", ["suspects"], read):
        yield event


@router.post("/review/assign")
def assign_waiting(session: SessionDep, actor: Reviewer, chosen: Chosen, form: AssignNextForm) -> Response:
    ids = service.assign_next(session, actor, chosen, form.person, form.count)
    return see_other(address("/review", chosen), notice=f"{len(ids)} assigned.")


@router.post("/review/undo")
def undo(session: SessionDep, actor: Reviewer, chosen: Chosen, form: UndoForm) -> Response:
    """Take back your latest verdict and show its item, where `u` takes back the verdict before."""
    decision = verdicts.undo(session, actor, form.verdict)
    record = decision[0]
    done = f"Verdict taken back: {words(record.verdict)}"
    if record.is_bulk:
        return see_other(address("/review", chosen), f"{done}, for {len(decision)} of the cluster.")
    item = session.get(ReviewItem, record.rollout_id or record.flag_id)
    if item is None:
        return see_other(f"/rollouts/{record.rollout_id}", f"{done}.")
    return see_other(address(f"/review/{item.id}", chosen), f"{done}. Review it again or continue.")


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
    """By the id of the item, or of a flag: then its evidence is shown at once."""
    item, by_flag = queries.get_item(session, item_id)
    context = item_page(session, actor, item, chosen, evidence=evidence or by_flag, judged=judged, beside=beside)
    return page(request, "review/item.html", context, block="beside" if beside else None)


@router.post("/review/{item_id}")
def judge(
    session: SessionDep, actor: Reviewer, item_id: uuid.UUID, chosen: Chosen, form: VerdictForm, evidence: bool = False
) -> Response:
    """Store the verdict and show the next item, where `u` takes the verdict back."""
    item, by_flag = queries.get_item(session, item_id)
    is_blind = not (evidence or by_flag or screens.may_have_seen(session, actor, item, chosen))
    stored = verdicts.give_verdict(session, actor, item, form, is_blind=is_blind)[0].verdict
    effects = effects_of(session, item.rollout_id) if stored is Verdict.HACK and item.rollout_id else None
    caused = screens.CAUSED[stored] if item.rollout_id else "It applies to this flag."
    if effects and effects.gap:
        caused = f"No certificate replays it: {effects.gap}."
    return _show_next(session, actor, item, chosen, f"Verdict: {words(stored)}. {caused} Undo (u)")


@router.post("/review/{item_id}/cluster")
def judge_cluster(
    session: SessionDep, actor: Reviewer, item_id: uuid.UUID, chosen: Chosen, form: ClusterVerdictForm
) -> Response:
    item, _ = queries.get_item(session, item_id)
    count = verdicts.judge_cluster(session, actor, item, form.verdict)
    done = "taken back" if form.verdict is Verdict.UNSURE else f"marked as {words(form.verdict)}"
    return _show_next(session, actor, item, chosen, f"{count} of the cluster {done}")


def _show_next(session: Session, actor: Actor, item: ReviewItem, chosen: ReviewFilter, done: str) -> Response:
    following = queries.next_id(session, chosen, actor.person_id, item)
    if following is None and chosen.lists_flagged:
        sample = chosen.model_copy(update={"order": Order.INTERVAL})
        if drawn := queries.next_id(session, sample, actor.person_id):
            done = f"{done}. No flagged item is left. The audit sample begins"
            return see_other(address(f"/review/{drawn}", sample, judged=item.id), f"{done}; its flags are hidden.")
    if following is None:
        return see_other(address("/review", chosen, judged=item.id), f"{done}. Nothing is left to review.")
    return see_other(address(f"/review/{following}", chosen, judged=item.id), f"{done}. This is the next item.")


@router.post("/review/{item_id}/assign")
def assign(session: SessionDep, actor: Reviewer, item_id: uuid.UUID, chosen: Chosen, form: AssignmentForm) -> Response:
    item, _ = queries.get_item(session, item_id)
    service.assign(session, actor, [item.id], form.person)
    return see_other(address(f"/review/{item.id}", chosen), "Assigned.")


@router.post("/review/{item_id}/comments")
def comment(session: SessionDep, actor: Reviewer, item_id: uuid.UUID, chosen: Chosen, form: CommentForm) -> Response:
    item, _ = queries.get_item(session, item_id)
    service.write_comment(session, actor, item, form.text)
    return see_other(address(f"/review/{item.id}", chosen, evidence="1") + "#thread")


@router.post("/review/{item_id}/comments/{comment_id}/delete")
def delete_comment(
    session: SessionDep, actor: Reviewer, item_id: uuid.UUID, comment_id: uuid.UUID, chosen: Chosen
) -> Response:
    item, _ = queries.get_item(session, item_id)
    service.delete_comment(session, actor, item, comment_id)
    return see_other(address(f"/review/{item.id}", chosen, evidence="1") + "#thread", "The comment is deleted.")


@router.post("/review/{item_id}/release")
def release(session: SessionDep, actor: Reviewer, item_id: uuid.UUID, chosen: Chosen, form: AssignmentForm) -> Response:
    item, _ = queries.get_item(session, item_id)
    service.unassign(session, actor, item, form.person)
    return see_other(address(f"/review/{item.id}", chosen), "Unassigned.")


@router.get("/environments/{name}/judged", response_class=HTMLResponse)
def show_fixtures(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    environment = get_environment(session, name)
    all_fixtures = fixtures.fixtures_of(session, environment.id)
    context = {
        "environment": environment,
        "active": [fixture for fixture in all_fixtures if fixture.withdrawn_at is None],
        "withdrawn": [fixture for fixture in all_fixtures if fixture.withdrawn_at is not None],
        "most_by_verdict": fixtures.MAX_BY_VERDICT,
    }
    return page(request, "review/fixtures.html", context)


@router.post("/rollouts/{rollout_id}/fixture")
def keep_rollout(session: SessionDep, actor: Reviewer, rollout_id: uuid.UUID, form: KeepForm) -> Response:
    fixture = verdicts.keep_fixture(session, actor, rollout_id, form)
    return _to_list(session, fixture, f"{fixture.name} is replayed by every certificate from now on.")


@router.post("/fixtures/{fixture_id}/bound")
def change_bound(session: SessionDep, actor: Author, fixture_id: uuid.UUID, form: BoundForm) -> Response:
    fixture = fixtures.change_bound(session, actor, fixtures.get_fixture(session, fixture_id), form.bound)
    return _to_list(session, fixture, "The bound is changed; the old one stays in the history.")


@router.post("/fixtures/{fixture_id}/withdraw")
def withdraw(session: SessionDep, actor: Author, fixture_id: uuid.UUID, form: WithdrawalForm) -> Response:
    fixture = fixtures.get_fixture(session, fixture_id)
    fixtures.withdraw(session, actor, fixture, form.because)
    return _to_list(session, fixture, f"{fixture.name} is taken back.")


@router.get("/runs/{run_id}/judged.json")
def judged_points(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> dict[str, Any]:
    """Points of the reward as trained and as judged."""
    run = session.get(Run, run_id)
    if run is None:
        raise NotFound("There is no such run.")
    return judged_curves.chart_of(session, run)


def _to_list(session: SessionDep, fixture: VerdictFixture, notice: str) -> Response:
    environment = session.get_one(Environment, fixture.environment_id)
    return see_other(f"/environments/{environment.name}/judged", notice=notice)


@router.get("/runs/{run_id}/safeguards", response_class=HTMLResponse)
def show_safeguards(request: Request, session: SessionDep, _: Viewer, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, "review/safeguards.html", {"report": safeguards_of(session, run_id)})


@router.get("/team/review", response_class=HTMLResponse)
def show_team_review(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "review/team.html", {"review": team_review(session)})
