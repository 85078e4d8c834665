"""/runs/{id}/safeguards, for the screen and for paper; /team/review."""

import uuid
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from backend.judging.reports.safeguards import Safeguards, safeguards_of
from backend.judging.reports.team import TeamReview, team_review
from backend.web.dependencies import SessionDep, Viewer
from backend.web.pages import page

router = APIRouter()


@dataclass(frozen=True, slots=True)
class SafeguardsPage:
    report: Safeguards


@dataclass(frozen=True, slots=True)
class TeamPage:
    review: TeamReview


@router.get("/runs/{run_id}/safeguards", response_class=HTMLResponse)
def show_safeguards(request: Request, session: SessionDep, _: Viewer, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, "reports/safeguards.html", SafeguardsPage(safeguards_of(session, run_id)))


@router.get("/team/review", response_class=HTMLResponse)
def show_team_review(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "reports/team.html", TeamPage(team_review(session)))
