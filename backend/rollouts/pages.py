"""/rollouts/{id}: one episode with its conversation, next to another member of its group, and as its raw record."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, joinedload

from backend.detectors.tables import PICKED, Flag
from backend.domain.environments.views import ViewRenderer
from backend.domain.vocabulary import Verdict
from backend.environments.views import view_renderer
from backend.errors import InvalidInput, NotFound
from backend.graders.queries import grades_of_rollout
from backend.graders.tables import Grade
from backend.policies.queries import policy_options
from backend.review.evidence import read_evidence
from backend.review.fixtures import effects_of
from backend.review.service import pick, unpick
from backend.review.tables import VerdictRecord
from backend.rollouts.conversation import (
    MAX_SEARCHED,
    SMALL_RECORD,
    Outline,
    find_messages,
    read_outline,
    read_part,
)
from backend.rollouts.queries import Neighbors, columns_of, get_rollout, neighbors, siblings, weights_of
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.rollouts.transcripts import mark_differences, token_view
from backend.runs.schemas import RolloutFilter
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.error_pages import is_timeout
from backend.web.page import page, see_other
from backend.web.transcripts import Entry, Span, bounded, shortened, transcript_of, with_views

router = APIRouter()
MAX_RAW = 200_000
"""Characters of the raw record that the page itself holds."""
MAX_SIBLINGS = 64
Place = Annotated[int, Query(ge=0, le=1_000_000)]
FindText = Annotated[str, Query(max_length=MAX_SEARCHED)]


@dataclass(slots=True)
class TranscriptPart:
    """A range of a conversation. Its entries are loaded when a reader scrolls to it."""

    places: range
    entries: list[Entry] | None = None


@dataclass(frozen=True, slots=True)
class Citations:
    """What detectors and graders point at."""

    quotes: Sequence[str]
    spans: Sequence[Span]


@router.get("/rollouts/{rollout_id}", response_class=HTMLResponse)
def show_rollout(
    request: Request,
    rollout_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    wanted: Annotated[RolloutFilter, Query()],
    whole: bool = False,
    tokens: bool = False,
    at: Place = 0,
    turn: Place | None = None,
    find: FindText = "",
) -> HTMLResponse:
    """Show a rollout. `at` or `turn`: the message or reply whose part of the conversation is loaded too."""
    rollout = get_rollout(session, rollout_id, is_whole=False)
    flags = session.scalars(select(Flag).where(Flag.rollout_id == rollout.id).order_by(Flag.score.desc())).all()
    given = (
        select(VerdictRecord).options(joinedload(VerdictRecord.person)).where(VerdictRecord.rollout_id == rollout.id)
    )
    verdicts = session.scalars(given.order_by(VerdictRecord.id.desc())).all()
    grades = grades_of_rollout(session, rollout.id)
    renderer = view_renderer(session, rollout.group.task.version_id)
    outline = read_outline(session, rollout.id, with_first_part=not whole)
    if turn is not None and turn < len(outline.replies):
        at = outline.replies[turn]
    cited = cited_in(flags, grades)
    if whole or not outline.roles:
        entries = _transcript(rollout, cited)
        entries = entries if whole else [shortened(entry) for entry in entries]
        parts = [TranscriptPart(range(0), with_views(entries, renderer, rollout.opening, rollout.steps))]
    else:
        parts = [TranscriptPart(each) for each in outline.parts()]
        for part in parts:
            if part.places.start == 0 or at in part.places:
                part.entries = _entries_of(session, rollout, outline, part.places, renderer, cited)
    is_small = outline.stored_bytes <= SMALL_RECORD
    members = siblings(session, rollout)
    raw = _raw_record(rollout) if is_small else ""
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
        "parts": parts,
        "outline": outline,
        "is_cut": any(entry.left_out for part in parts for entry in part.entries or ()),
        "evidence": _evidence_elsewhere(outline, parts, cited),  # links to marked turns that are not loaded
        "find": find,
        "found": find_messages(session, rollout.id, find) if find else None,
        "is_long": len(parts) > 1,
        "columns": columns_of(rollout.run, rollout),
        "weights": weights_of(rollout),
        "others": _other_seats(rollout, renderer),
        "opponents": policy_options(session, rollout.group.task.version.typed_manifest) if rollout.seats else (),
        "siblings": members[:MAX_SIBLINGS],
        "sibling_count": len(members),
        "around": around,
        "wanted": wanted,
        "flags": flags,
        "verdicts": verdicts,  # newest first; those with `taken_back_at` have no effect
        "after": effects_of(session, rollout.id) if verdicts else None,
        "grades": grades,
        "tokens": token_view(session, rollout) if tokens or outline.token_bytes <= SMALL_RECORD else None,
        "are_tokens_left_out": not tokens and outline.token_bytes > SMALL_RECORD,
        "is_small": is_small,
        "raw": raw[:MAX_RAW],
        "is_raw_cut": len(raw) > MAX_RAW,
        "is_picked": any(flag.detector == PICKED for flag in flags),
        # the query string with the filter and the order, for links to other rollouts
        "carried": "" if is_default else "?" + wanted.query(columns=None, limit=None, sort=wanted.sort),
        "verdict_names": tuple(Verdict),
    }
    return page(request, "rollouts/detail.html", context)


@router.get("/rollouts/{rollout_id}/messages", response_class=HTMLResponse)
def show_messages(
    request: Request, rollout_id: uuid.UUID, session: SessionDep, _: Viewer, start: Place
) -> HTMLResponse:
    """One part of a conversation, for a page that shows the parts before it."""
    rollout = get_rollout(session, rollout_id, is_whole=False)
    outline = read_outline(session, rollout.id)
    part = next((each for each in outline.parts() if start in each), None)
    if part is None:
        raise NotFound("The conversation has no such message.")
    flags = session.scalars(select(Flag).where(Flag.rollout_id == rollout.id)).all()
    cited = cited_in(flags, grades_of_rollout(session, rollout.id))
    renderer = view_renderer(session, rollout.group.task.version_id)
    entries = _entries_of(session, rollout, outline, part, renderer, cited)
    return page(request, "rollouts/_messages.html", {"entries": entries})


@router.get("/rollouts/{rollout_id}/find", response_class=HTMLResponse)
def find_in_rollout(
    request: Request, rollout_id: uuid.UUID, session: SessionDep, _: Viewer, find: FindText = ""
) -> HTMLResponse:
    """Messages that contain a text, with links to them."""
    rollout = get_rollout(session, rollout_id, is_whole=False)
    context = {
        "rollout": rollout,
        "outline": read_outline(session, rollout.id),
        "find": find,
        "found": find_messages(session, rollout.id, find),
    }
    return page(request, "rollouts/_found.html", context)


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
    conversations = [_transcript(each, Citations((), ())) for each in (first, second)]
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


def cited_in(flags: Sequence[Flag], grades: Sequence[Grade]) -> Citations:
    evidence = [read_evidence(flag.evidence) for flag in flags]
    cited = [
        Span(each["turn"] - 1, each["start"], each["end"], each["part"], each["quote"])  # turns count from 0 here
        for grade in grades
        for each in grade.citations
    ]
    spans = [span for each in evidence for span in each.spans] + cited
    return Citations([quote for each in evidence for quote in each.quotes], spans)


def _transcript(rollout: Rollout, cited: Citations) -> list[Entry]:
    """The conversation, with the evidence of detectors and the citations of graders marked."""
    weights = weights_of(rollout)
    return transcript_of(
        rollout.messages,
        rollout.steps,
        list(weights),
        weights=list(weights.values()),
        quotes=cited.quotes,
        spans=cited.spans,
    )


def _entries_of(
    session: Session, rollout: Rollout, outline: Outline, part: range, renderer: ViewRenderer, cited: Citations
) -> list[Entry]:
    """One part of the conversation, as `_transcript` shows it."""
    follows_reply = part.start > 0 and outline.roles[part.start - 1] == "assistant"  # its call names the tool
    read = range(part.start - follows_reply, part.stop)
    messages, steps, first_step = read_part(session, rollout.id, outline, read, with_history=bool(renderer.specs))
    weights = weights_of(rollout)
    entries = transcript_of(
        messages,
        steps,
        list(weights),
        weights=list(weights.values()),
        quotes=cited.quotes,
        spans=cited.spans,
        first_place=read.start,
        first_turn=outline.turns_before(read.start),
        first_step=first_step,
    )
    shown = [shortened(entry) for entry in entries[follows_reply:]]
    is_end = part.stop == len(outline.roles)
    return with_views(shown, renderer, rollout.opening, steps, first_step=first_step, is_end_shown=is_end)


def _evidence_elsewhere(outline: Outline, parts: Sequence[TranscriptPart], cited: Citations) -> list[int]:
    """Turns that detectors and graders point at in parts that are not loaded."""
    missing = [part.places for part in parts if part.entries is None]
    turns = sorted({max(0, span.turn) for span in cited.spans if span.turn < len(outline.replies)})
    return [turn for turn in turns if any(outline.replies[turn] in places for places in missing)][:20]


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
