"""/leaderboards: who does best on which environment version."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.environments.tables import Environment, EnvironmentVersion
from backend.results.leaderboard import LEAST_COVERAGE, RANKED_KINDS, Leaderboard
from backend.results.leaderboard_responses import as_csv
from backend.results.requests import LeaderboardQuery, board_of, environment_of
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page

router = APIRouter()
COMPARED_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Listed:
    """An environment version that was evaluated."""

    environment: str
    number: int
    policies: int
    runs: int
    latest: datetime


@dataclass(frozen=True, slots=True)
class LeaderboardsPage:
    """All that have one."""

    items: Sequence[Listed]


@dataclass(frozen=True, slots=True)
class LeaderboardPage:
    """The contenders of one version."""

    environment: Environment
    board: Leaderboard | None
    """None: nothing is published."""
    numbers: Sequence[int]
    """Of the versions, newest first."""
    low: float
    high: float
    """The scale of the intervals."""
    top_two: str
    """Addresses of comparisons; empty where there are fewer."""
    top: str
    export: str
    least: float = LEAST_COVERAGE


@router.get("/leaderboards", response_class=HTMLResponse)
def list_leaderboards(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    statement = (
        select(
            Environment.name,
            EnvironmentVersion.number,
            func.count(Run.policy_id.distinct()),
            func.count(Run.id),
            func.max(Run.created_at),
        )
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .where(Run.kind.in_(RANKED_KINDS), Run.policy_id.is_not(None), Environment.archived_at.is_(None))
        .group_by(Environment.name, EnvironmentVersion.number)
        .order_by(Environment.name, EnvironmentVersion.number.desc())
    )
    items = [Listed(*row) for row in session.execute(statement)]
    return page(request, "results/leaderboards.html", LeaderboardsPage(items))


@router.get("/leaderboards/{name}", response_class=HTMLResponse)
def show_leaderboard(
    request: Request, name: str, session: SessionDep, _: Viewer, wanted: Annotated[LeaderboardQuery, Query()]
) -> HTMLResponse:
    return page(request, "results/leaderboard.html", _page(session, name, wanted), block="board")


@router.get("/leaderboards/{name}/export.csv")
def export_leaderboard(
    name: str, session: SessionDep, _: Viewer, wanted: Annotated[LeaderboardQuery, Query()]
) -> Response:
    found = board_of(session, name, wanted)
    file = f'attachment; filename="{name}-v{found.version.number}-leaderboard.csv"'
    return Response(as_csv(found), media_type="text/csv; charset=utf-8", headers={"Content-Disposition": file})


def _page(session: Session, name: str, wanted: LeaderboardQuery) -> LeaderboardPage:
    environment = environment_of(session, name)
    of_environment = EnvironmentVersion.environment_id == environment.id
    numbers = session.scalars(select(EnvironmentVersion.number).where(of_environment)).all()
    board = board_of(session, name, wanted) if numbers else None
    ranked = board.ranked if board else ()
    ends = [end for each in ranked if each.reward for end in (each.reward.low, each.reward.high)]
    chosen = {"version": board and board.version.number, "exam": wanted.exam}
    return LeaderboardPage(
        environment,
        board,
        sorted(numbers, reverse=True),
        min(ends, default=0.0),
        max(ends, default=1.0),
        _comparison(board, 2),
        _comparison(board, COMPARED_AT_MOST),
        f"/leaderboards/{name}/export.csv?"
        + urlencode({key: value for key, value in chosen.items() if value not in (None, "")}),
    )


def _comparison(board: Leaderboard | None, most: int) -> str:
    """The best against those that follow."""
    runs = [each.run.id for each in board.ranked[:most]] if board else []
    return "/compare?" + urlencode({"run": runs}, doseq=True) if len(runs) > 1 else ""
