"""JSON of scores by a draft."""

import uuid
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from backend.rollouts.regrading.drafts import draft_score, score_by_draft
from backend.web.dependencies import Author, SessionDep

router = APIRouter(prefix="/api/v1", tags=["rescoring"])


class DraftScoreAnswer(BaseModel):
    id: uuid.UUID
    rollout_id: uuid.UUID
    environment: str
    is_stale: bool
    """The draft was saved since."""
    answer: dict[str, Any] | None
    """null while it is at work; `this`, `cluster` and `history` with means before and after, `policies` in their new
    order, or `error`."""


@router.post("/rollouts/{rollout_id}/draft-score", status_code=202)
def ask(rollout_id: uuid.UUID, session: SessionDep, _: Author) -> DraftScoreAnswer:
    """Have the draft of the environment score this rollout, its cluster and the newest history."""
    return _answer(session, score_by_draft(session, rollout_id).id)


@router.get("/draft-scores/{job_id}")
def show(job_id: uuid.UUID, session: SessionDep, _: Author) -> DraftScoreAnswer:
    return _answer(session, job_id)


def _answer(session: SessionDep, job_id: uuid.UUID) -> DraftScoreAnswer:
    found = draft_score(session, job_id)
    return DraftScoreAnswer(
        id=found.job.id,
        rollout_id=found.rollout_id,
        environment=found.environment.name,
        is_stale=found.is_stale,
        answer=found.answer,
    )
