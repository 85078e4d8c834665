"""JSON of the reports."""

import uuid

from fastapi import APIRouter

from backend.review.safeguards import Safeguards, safeguards_of
from backend.review.team_report import TeamReview, team_review
from backend.web.dependencies import SessionDep, Viewer

router = APIRouter(prefix="/api/v1", tags=["judging"])


@router.get("/runs/{run_id}/safeguards")
def safeguards(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> Safeguards:
    """What was done so that the run's reward means what it says."""
    return safeguards_of(session, run_id)


@router.get("/team/review")
def review_of_team(session: SessionDep, _: Viewer) -> TeamReview:
    """What waits for a verdict, since when, who judges how much, and how far people agree."""
    return team_review(session)
