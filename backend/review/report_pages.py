"""/runs/{id}/safeguards, for the screen and for paper; /team/review."""

import uuid
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from backend.review.safeguards import Safeguards, safeguards_of
from backend.review.team_report import TeamReview, team_review
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page

router = APIRouter()


@dataclass(frozen=True, slots=True)
class SafeguardsPage:
    report: Safeguards


@dataclass(frozen=True, slots=True)
class TeamPage:
    review: TeamReview


@router.get("/runs/{run_id}/safeguards", response_class=HTMLResponse)
def show_safeguards(request: Request, session: SessionDep, _: Viewer, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, "review/safeguards.html", SafeguardsPage(safeguards_of(session, run_id)))


@router.get("/team/review", response_class=HTMLResponse)
def show_team_review(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "review/team.html", TeamPage(team_review(session)))
