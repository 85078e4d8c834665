"""/rollouts/{id}: one episode with its conversation, next to another member of its group, and as its raw record."""

import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import joinedload

from backend.detectors.tables import Flag
from backend.domain.environments.views import ViewRenderer
from backend.domain.vocabulary import Verdict
from backend.environments.views import view_renderer
from backend.errors import InvalidInput, NotFound
from backend.graders.queries import grades_of_rollout
from backend.graders.tables import Grade
from backend.review.evidence import read_evidence
from backend.review.fixtures import effects_of
from backend.review.service import PICKED, pick, unpick
from backend.review.tables import VerdictRecord
from backend.rollouts.queries import Neighbors, columns_of, get_rollout, neighbors, siblings, weights_of
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.rollouts.transcripts import mark_differences, token_view
from backend.runs.schemas import RolloutFilter
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.error_pages import is_timeout
from backend.web.page import page, see_other
from backend.web.transcripts import Entry, Span, bounded, transcript_of, with_views

router = APIRouter()
MAX_RAW = 200_000
"""Characters of the raw record that the page itself holds."""
MAX_SIBLINGS = 64


@router.get("/rollouts/{rollout_id}", response_class=HTMLResponse)
def show_rollout(
    request: Request,
    rollout_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    wanted: Annotated[RolloutFilter, Query()],
    whole: bool = False,
) -> HTMLResponse:
    rollout = get_rollout(session, rollout_id)
    flags = session.scalars(select(Flag).where(Flag.rollout_id == rollout.id).order_by(Flag.score.desc())).all()
    given = (
        select(VerdictRecord).options(joinedload(VerdictRecord.person)).where(VerdictRecord.rollout_id == rollout.id)
    )
    verdicts = session.scalars(given.order_by(VerdictRecord.id.desc())).all()
    grades = grades_of_rollout(session, rollout.id)
    entries = _transcript(rollout, flags, grades)
    shown, left_out = (entries, 0) if whole else bounded(entries)
    renderer = view_renderer(session, rollout.group.task.version_id)
    members = siblings(session, rollout)
    raw = _raw_record(rollout)
    wanted = wanted.as_expression()
    if "sort" not in request.query_params and not wanted.where:
        wanted = wanted.model_copy(update={"sort": "seq"})
    around = Neighbors()  # stays so if the filter is wrong or takes too long: the rollout itself can still be shown
    try:
        with session.begin_nested():
            around = neighbors(session, rollout, wanted, scope_of(session, rollout.run))
    except InvalidInput:
        pass
    except OperationalError as error:
        if not is_timeout(error):
            raise
    is_default = not wanted.where and wanted.sort == "seq"
    context = {
        "rollout": rollout,
        "run": rollout.run,
        "entries": with_views(shown, renderer, rollout.opening, rollout.steps),
        "left_out": left_out,  # messages in the middle
        "is_whole": whole,
        "columns": columns_of(rollout.run, rollout),
        "weights": weights_of(rollout),
        "others": _other_seats(rollout, renderer),
        "siblings": members[:MAX_SIBLINGS],
        "sibling_count": len(members),
        "around": around,
        "wanted": wanted,
        "flags": flags,
        "verdicts": verdicts,  # newest first; those with `taken_back_at` have no effect
        "after": effects_of(session, rollout.id) if verdicts else None,
        "grades": grades,
        "tokens": token_view(session, rollout),
        "raw": raw[:MAX_RAW],
        "is_raw_cut": len(raw) > MAX_RAW,
        "is_picked": any(flag.detector == PICKED for flag in flags),
        # the query string with the filter and the order, for links to other rollouts
        "carried": "" if is_default else "?" + wanted.query(columns=None, limit=None, sort=wanted.sort),
        "verdict_names": tuple(Verdict),
    }
    return page(request, "rollouts/detail.html", context)


@router.get("/rollouts/{rollout_id}/raw.json", response_class=Response)
def download_raw(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> Response:
    rollout = get_rollout(session, rollout_id)
    disposition = f'attachment; filename="rollout-{rollout.id}.json"'
    return Response(_raw_record(rollout), media_type="application/json", headers={"Content-Disposition": disposition})


@router.get("/rollouts/{rollout_id}/beside/{other_id}", response_class=HTMLResponse)
def show_beside(
    request: Request, rollout_id: uuid.UUID, other_id: uuid.UUID, session: SessionDep, _: Viewer
) -> HTMLResponse:
    """Show two rollouts of the same group with the words that differ marked."""
    first, second = (get_rollout(session, each) for each in (rollout_id, other_id))
    if first.group_id != second.group_id:
        raise NotFound("These two rollouts are not from the same group. Compare their runs instead.")
    conversations = [_transcript(each, ()) for each in (first, second)]
    before, after = (bounded(entries)[0] for entries in conversations)
    one, other, parting = mark_differences(before, after)
    renderer = view_renderer(session, first.group.task.version_id)
    one, other = (
        with_views(entries, renderer, rollout.opening, rollout.steps)
        for entries, rollout in ((one, first), (other, second))
    )
    context = {
        "run": first.run,
        "first": first,
        "second": second,
        "entries": (one, other),
        "parting": parting,  # the first turn in which the replies differ
        "columns": (columns_of(first.run, first), columns_of(second.run, second)),
        "siblings": siblings(session, first)[:MAX_SIBLINGS],
    }
    return page(request, "rollouts/beside.html", context)


@router.post("/rollouts/{rollout_id}/review", response_class=HTMLResponse)
@router.post("/rollouts/{rollout_id}/review/undo", response_class=HTMLResponse)
def change_review(request: Request, rollout_id: uuid.UUID, session: SessionDep, actor: Reviewer) -> Response:
    """Add the rollout to the review queue, or remove it."""
    is_undone = request.url.path.endswith("/undo")
    (unpick if is_undone else pick)(session, actor, get_rollout(session, rollout_id))
    notice = "Removed from the review queue." if is_undone else "Added to the review queue."
    return see_other(f"/rollouts/{rollout_id}", notice)


def _transcript(rollout: Rollout, flags: Sequence[Flag], grades: Sequence[Grade] = ()) -> list[Entry]:
    """The conversation, with the evidence of detectors and the citations of graders marked."""
    evidence = [read_evidence(flag.evidence) for flag in flags]
    weights = weights_of(rollout)
    cited = [
        Span(each["turn"] - 1, each["start"], each["end"], each["part"], each["quote"])  # turns count from 0 here
        for grade in grades
        for each in grade.citations
    ]
    return transcript_of(
        rollout.messages,
        rollout.steps,
        list(weights),
        weights=list(weights.values()),
        quotes=[quote for each in evidence for quote in each.quotes],
        spans=[span for each in evidence for span in each.spans] + cited,
    )


def _other_seats(rollout: Rollout, renderer: ViewRenderer) -> list[tuple[dict[str, Any], list[Entry]]]:
    """The other seats of the episode, each with its conversation."""
    weights = weights_of(rollout)
    shown = []
    for play in (rollout.seats or {}).get("others", ()):
        entries = transcript_of(play["messages"], play["steps"], list(weights), weights=list(weights.values()))
        entries = with_views(bounded(entries)[0], renderer, rollout.opening, play["steps"])
        shown.append((play, entries))
    return shown


def _raw_record(rollout: Rollout) -> str:
    names = ("opening", "steps", "messages", "metrics", "tokens", *(("seats",) if rollout.seats else ()))
    record = {"id": str(rollout.id), **{name: getattr(rollout, name) for name in names}}
    return json.dumps(record, indent=1, ensure_ascii=False)
