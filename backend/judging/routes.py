"""The review: the queue of suspects, and one screen for a verdict on each."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.db.models import Flag, Rollout, VerdictRecord
from backend.domain.vocabulary import Verdict
from backend.events import REVIEW
from backend.judging import queries, service
from backend.judging.evidence import Evidence, read_evidence
from backend.judging.forms import FlagFilter, VerdictForm, read_flag_filter
from backend.judging.queries import Suspect
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.forms import read_form
from backend.web.pages import page, render_block, see_other
from backend.web.paging import LIMIT, After
from backend.web.streams import live
from backend.web.transcripts import Entry, transcript_of

router = APIRouter()
EXAMPLES = 3
"""Rollouts shown with a flag about a run."""
Chosen = Annotated[FlagFilter, Depends(read_flag_filter)]


@dataclass(frozen=True, slots=True)
class QueuePage:
    suspects: list[Suspect]
    waiting: int
    chosen: FlagFilter
    detectors: list[str]
    environments: list[str]
    query: str
    """The filters as the end of an address, for links into the review."""
    next_url: str


@dataclass(frozen=True, slots=True)
class FlagPage:
    flag: Flag
    siblings: Sequence[Flag]
    history: Sequence[VerdictRecord]
    shown: list[tuple[Rollout, list[Entry]]]
    """The flagged rollout, or examples of what is said of the run."""
    evidence: Evidence
    verdicts: list[tuple[Verdict, str, str]]
    """(verdict, key, what it means)"""
    waiting: int
    query: str
    skip_url: str
    undo_url: str


_MEANINGS = {
    Verdict.HONEST: "the reward was earned",
    Verdict.HACK: "the reward was tricked out of the environment",
    Verdict.BROKEN_REWARD: "the reward is wrong, the policy is not to blame",
    Verdict.UNSURE: "somebody else should look",
}


@router.get("/review")
def show_queue(request: Request, session: SessionDep, _: Viewer, chosen: Chosen, after: After = None) -> Response:
    return page(request, "judging/queue.html", _queue_page(session, chosen, after), block="suspects")


def _queue_page(session: Session, chosen: FlagFilter, after: str | None = None) -> QueuePage:
    suspects, following = queries.queue(session, chosen, after=after, limit=LIMIT)
    detectors, environments = queries.choices(session)
    next_url = f"/review?{urlencode(chosen.query() | {'after': following})}" if following else ""
    return QueuePage(
        suspects, queries.count_unreviewed(session), chosen, detectors, environments, _query(chosen), next_url
    )


def _query(chosen: FlagFilter) -> str:
    return f"?{urlencode(chosen.query())}" if chosen.query() else ""


@router.get("/review/events", response_class=EventSourceResponse)
async def follow_queue(request: Request, _: Viewer, chosen: Chosen) -> AsyncIterable[ServerSentEvent]:
    def draw(session: Session) -> dict[str, str]:
        context = _queue_page(session, chosen)
        return {"suspects": render_block(request, "judging/queue.html", "suspects", context)}

    async for event in live(request, (REVIEW,), draw):
        yield event


@router.get("/review/{flag_id}")
def show_flag(
    request: Request, session: SessionDep, _: Viewer, flag_id: uuid.UUID, chosen: Chosen, undo: uuid.UUID | None = None
) -> Response:
    flag = queries.get_flag(session, flag_id)
    following = queries.next_suspect(session, chosen, flag)
    query = _query(chosen)
    context = FlagPage(
        flag=flag,
        siblings=queries.flags_of_subject(session, flag),
        history=queries.verdicts_on(session, flag),
        shown=_transcripts(session, flag, evidence := read_evidence(flag.evidence)),
        evidence=evidence,
        verdicts=[(verdict, str(number + 1), _MEANINGS[verdict]) for number, verdict in enumerate(Verdict)],
        waiting=queries.count_unreviewed(session),
        query=query,
        skip_url=f"/review/{following.id}{query}" if following else "",
        undo_url=f"/review/{undo}{query}" if undo else "",
    )
    return page(request, "judging/flag.html", context)


def _transcripts(session: Session, flag: Flag, evidence: Evidence) -> list[tuple[Rollout, list[Entry]]]:
    if flag.rollout:
        rollouts = [flag.rollout]
    else:
        rollouts = queries.rollouts_with_transcripts(session, flag.run_id, evidence.rollout_ids[:EXAMPLES])
    run = flag.run
    marks: dict[str, Any] = {"quotes": evidence.quotes, "spans": evidence.spans}
    return [
        (each, transcript_of(each.messages, each.steps, run.columns, weights=run.weights, **marks)) for each in rollouts
    ]


@router.post("/review/{flag_id}")
def judge(
    session: SessionDep,
    actor: Reviewer,
    flag_id: uuid.UUID,
    chosen: Chosen,
    form: Annotated[VerdictForm, Depends(read_form(VerdictForm))],
) -> Response:
    """Store the verdict and go on to the next suspect; `u` there comes back here."""
    flag = queries.get_flag(session, flag_id)
    service.judge_flag(session, actor, flag, form)
    following = queries.next_suspect(session, chosen, flag)
    word = str(form.verdict).replace("_", " ")
    if following is None:
        return see_other(f"/review{_query(chosen)}", notice=f"Judged {word}. Nothing waits for review any more.")
    parameters = urlencode(chosen.query() | {"undo": str(flag.id)})
    return see_other(f"/review/{following.id}?{parameters}", notice=f"Judged {word}; here is the next.")
