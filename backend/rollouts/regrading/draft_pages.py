"""Scores by a draft, before it is published: asked for beside a transcript, shown as soon as they are there."""

import uuid
from collections.abc import AsyncIterable

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import job_topic
from backend.rollouts.regrading.drafts import DraftScore, draft_score, score_by_draft
from backend.web.dependencies import Author, SessionDep
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()
TEMPLATE = "rollouts/regrading/draft.html"


@router.post("/rollouts/{rollout_id}/draft-score")
def ask(session: SessionDep, _: Author, rollout_id: uuid.UUID) -> Response:
    return see_other(f"/draft-scores/{score_by_draft(session, rollout_id).id}")


@router.get("/draft-scores/{job_id}", response_class=HTMLResponse)
def show(request: Request, session: SessionDep, _: Author, job_id: uuid.UUID) -> HTMLResponse:
    return page(request, TEMPLATE, draft_score(session, job_id))


@router.get("/draft-scores/{job_id}/events", response_class=EventSourceResponse)
async def events(request: Request, _: Author, job_id: uuid.UUID) -> AsyncIterable[ServerSentEvent]:
    """The answer as soon as it is there."""

    def read(session: Session) -> DraftScore:
        return draft_score(session, job_id)

    async for event in live_blocks(request, (job_topic(job_id),), TEMPLATE, ["draft_scores"], read):
        yield event
