"""/rollouts/{id}: one episode whole, beside a sibling of its group, and as its raw record."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.vocabulary import Verdict
from backend.errors import InvalidInput, NotFound
from backend.graders.queries import grades_of_rollout
from backend.graders.tables import Grade
from backend.review.evidence import read_evidence
from backend.review.fixtures import VerdictEffects, effects_of
from backend.review.schemas import VerdictRequest
from backend.review.service import PICKED, pick, unpick
from backend.review.tables import VerdictRecord
from backend.review.verdicts import VerdictSubject, give_verdict
from backend.rollouts import queries as rollout_queries
from backend.rollouts.listing import Neighbors, columns_of, neighbors
from backend.rollouts.scope import scope_of
from backend.rollouts.side_by_side import marked_apart
from backend.rollouts.tables import Rollout
from backend.rollouts.token_text import TokenView, token_view
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.error_pages import is_timeout
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.transcripts import Entry, Span, bounded, transcript_of

router = APIRouter()
MOST_RAW = 200_000
"""Characters of the raw record that the page itself holds."""
MOST_SIBLINGS = 64


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """One rollout: its conversation with what each turn earned, its group, and what was said about it."""

    rollout: Rollout
    run: Run
    entries: Sequence[Entry]
    left_out: int
    """Messages in the middle that are not shown."""
    is_whole: bool
    columns: dict[str, float]
    weights: dict[str, float]
    """Of the columns of its environment."""
    siblings: Sequence[Rollout]
    sibling_count: int
    around: Neighbors
    wanted: RolloutFilter
    flags: Sequence[Flag]
    verdicts: Sequence[VerdictRecord]
    after: VerdictEffects | None
    """Of the verdict that counts."""
    grades: Sequence[Grade]
    tokens: TokenView | None
    raw: str
    is_raw_cut: bool
    is_picked: bool
    """A person put it into the review queue."""
    carried: str
    """The filter and the order, for the links to other rollouts."""
    verdict_names: Sequence[str] = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class BesidePage:
    """Two members of a group side by side."""

    run: Run
    first: Rollout
    second: Rollout
    entries: tuple[Sequence[Entry], Sequence[Entry]]
    parting: int | None
    """The first turn in which the replies differ."""
    columns: tuple[dict[str, float], dict[str, float]]
    siblings: Sequence[Rollout]


@router.get("/rollouts/{rollout_id}", response_class=HTMLResponse)
def show_rollout(
    request: Request,
    rollout_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    wanted: Annotated[RolloutFilter, Query()],
    whole: bool = False,
) -> HTMLResponse:
    rollout = rollout_queries.get_rollout(session, rollout_id)
    flags = rollout_queries.flags_of_rollout(session, rollout.id)
    verdicts = rollout_queries.verdicts_of_rollout(session, rollout.id)
    grades = grades_of_rollout(session, rollout.id)
    entries = _entries(rollout, flags, grades)
    shown, left_out = (entries, 0) if whole else bounded(entries)
    siblings = rollout_queries.siblings(session, rollout)
    raw = _raw(rollout)
    wanted = wanted.as_expression()
    if "sort" not in request.query_params and not wanted.where:
        wanted = wanted.model_copy(update={"sort": "seq"})
    context = RolloutPage(
        rollout=rollout,
        run=rollout.run,
        entries=shown,
        left_out=left_out,
        is_whole=whole,
        columns=columns_of(rollout.run, rollout),
        weights=rollout_queries.weights_of(rollout),
        siblings=siblings[:MOST_SIBLINGS],
        sibling_count=len(siblings),
        around=_around(session, rollout, wanted),
        wanted=wanted,
        flags=flags,
        verdicts=verdicts,
        after=effects_of(session, rollout.id) if verdicts else None,
        grades=grades,
        tokens=token_view(session, rollout),
        raw=raw[:MOST_RAW],
        is_raw_cut=len(raw) > MOST_RAW,
        is_picked=any(flag.detector == PICKED for flag in flags),
        carried=_carried(wanted),
    )
    return page(request, "rollouts/detail.html", context)


@router.get("/rollouts/{rollout_id}/raw.json", response_class=Response)
def download_raw(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> Response:
    """The raw record as a file."""
    rollout = rollout_queries.get_rollout(session, rollout_id)
    disposition = f'attachment; filename="rollout-{rollout.id}.json"'
    return Response(_raw(rollout), media_type="application/json", headers={"Content-Disposition": disposition})


@router.get("/rollouts/{rollout_id}/beside/{other_id}", response_class=HTMLResponse)
def show_beside(
    request: Request, rollout_id: uuid.UUID, other_id: uuid.UUID, session: SessionDep, _: Viewer
) -> HTMLResponse:
    """Two rollouts of the same group, the words that differ marked."""
    first, second = (rollout_queries.get_rollout(session, each) for each in (rollout_id, other_id))
    if first.group_id != second.group_id:
        raise NotFound("These two rollouts are not of the same group; compare their runs instead.")
    before, _left = bounded(_entries(first, ()))
    after, _left = bounded(_entries(second, ()))
    *entries, parting = marked_apart(before, after)
    context = BesidePage(
        run=first.run,
        first=first,
        second=second,
        entries=(entries[0], entries[1]),
        parting=parting,
        columns=(
            columns_of(first.run, first),
            columns_of(second.run, second),
        ),
        siblings=rollout_queries.siblings(session, first)[:MOST_SIBLINGS],
    )
    return page(request, "rollouts/beside.html", context)


@router.post("/rollouts/{rollout_id}/verdicts", response_class=HTMLResponse)
def judge(
    rollout_id: uuid.UUID,
    session: SessionDep,
    actor: Reviewer,
    form: Annotated[VerdictRequest, Depends(read_form(VerdictRequest))],
) -> Response:
    subject = VerdictSubject.of_rollout(session, rollout_queries.get_rollout(session, rollout_id))
    give_verdict(session, actor, subject, form)
    return see_other(f"/rollouts/{rollout_id}", "Your verdict is stored.")


@router.post("/rollouts/{rollout_id}/review", response_class=HTMLResponse)
def add_to_review(rollout_id: uuid.UUID, session: SessionDep, actor: Reviewer) -> Response:
    pick(session, actor, rollout_queries.get_rollout(session, rollout_id))
    return see_other(f"/rollouts/{rollout_id}", "It waits in the review queue.")


@router.post("/rollouts/{rollout_id}/review/undo", response_class=HTMLResponse)
def take_out_of_review(rollout_id: uuid.UUID, session: SessionDep, actor: Reviewer) -> Response:
    unpick(session, actor, rollout_queries.get_rollout(session, rollout_id))
    return see_other(f"/rollouts/{rollout_id}", "It is out of the review queue again.")


def _carried(wanted: RolloutFilter) -> str:
    if not wanted.where and wanted.sort == "seq":
        return ""
    return "?" + wanted.query(columns=None, limit=None, sort=wanted.sort)


def _around(session: Session, rollout: Rollout, wanted: RolloutFilter) -> Neighbors:
    """None where the filter cannot be understood or takes too long: the rollout itself is shown all the same."""
    try:
        with session.begin_nested():
            return neighbors(session, rollout, wanted, scope_of(session, rollout.run))
    except InvalidInput:
        return Neighbors()
    except OperationalError as error:
        if not is_timeout(error):
            raise
        return Neighbors()


def _entries(rollout: Rollout, flags: Sequence[Flag], grades: Sequence[Grade] = ()) -> list[Entry]:
    """The conversation, with what detectors and answers point at marked."""
    evidence = [read_evidence(flag.evidence) for flag in flags]
    weights = rollout_queries.weights_of(rollout)
    return transcript_of(
        rollout.messages,
        rollout.steps,
        list(weights),
        weights=list(weights.values()),
        quotes=[quote for each in evidence for quote in each.quotes],
        spans=[span for each in evidence for span in each.spans] + _cited(grades),
    )


def _cited(grades: Sequence[Grade]) -> list[Span]:
    """Replies are counted from 0 on a page."""
    return [
        Span(each["turn"] - 1, each["start"], each["end"], each["part"], each["quote"])
        for grade in grades
        for each in grade.citations
    ]


def _raw(rollout: Rollout) -> str:
    whole: dict[str, Any] = {
        "id": str(rollout.id),
        "opening": rollout.opening,
        "steps": rollout.steps,
        "messages": rollout.messages,
        "metrics": rollout.metrics,
        "tokens": rollout.tokens,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)
