"""/compare and /leaderboards."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import func, select

from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.environments.queries import get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.queries import policy_options
from backend.results.comparison_page import ComparisonChoice, comparison_page
from backend.results.leaderboard import MIN_COVERAGE, RANKED_KINDS, get_leaderboard
from backend.results.match_table import matches_on
from backend.results.schemas import LeaderboardRequest
from backend.results.scores import best_steps
from backend.runs.tables import Run
from backend.web.csv_files import csv_response
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page

router = APIRouter()
LEADERBOARD_COMPARISON = 8
"""Maximum number of runs that a leaderboard compares."""
MOST_CANDIDATES = 200
"""Newest runs that can be selected, of the version and of all."""
COMPARABLE = frozenset({RunKind.EVALUATION, RunKind.TRAINING, RunKind.RESCORE, RunKind.REPLAY})


@router.get("/compare", response_class=HTMLResponse)
def show_comparison(
    request: Request, session: SessionDep, _: Viewer, choice: Annotated[ComparisonChoice, Query()]
) -> HTMLResponse:
    context = comparison_page(session, choice)
    is_comparable = Run.kind.in_(COMPARABLE), Run.status != RunStatus.QUEUED, Run.archived_at.is_(None)
    newest = select(Run.id, Run.name, Run.kind, Run.created_at).where(*is_comparable)
    newest = newest.order_by(Run.created_at.desc(), Run.id.desc()).limit(MOST_CANDIDATES)
    of_version = [newest.where(Run.version_id == side.run.version_id) for side in context.sides[:1]]
    candidates = {row.id: row for statement in (*of_version, newest) for row in session.execute(statement)}
    context.candidates = list(candidates.values())
    trained = [run.id for run in context.candidates if run.kind is RunKind.TRAINING]
    context.best = best_steps(session, trained)
    return page(request, "results/compare.html", context, block="comparison")


@router.get("/leaderboards", response_class=HTMLResponse)
def list_leaderboards(request: Request, session: SessionDep, actor: Viewer) -> HTMLResponse:
    statement = (
        select(
            Environment.name.label("environment"),
            EnvironmentVersion.number,
            func.count(Run.policy_id.distinct()).label("policies"),
            func.count(Run.id).label("runs"),
            func.max(Run.created_at).label("latest"),
        )
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .where(Run.kind.in_(RANKED_KINDS), Run.policy_id.is_not(None), Environment.archived_at.is_(None))
        .group_by(Environment.name, EnvironmentVersion.number)
        .order_by(Environment.name, EnvironmentVersion.number.desc())
    )
    if actor.project_id:
        statement = statement.where(Run.project_id == actor.project_id)
    return page(request, "results/leaderboards.html", {"items": session.execute(statement).all()})


@router.get("/leaderboards/{name}", response_class=HTMLResponse)
def show_leaderboard(
    request: Request, name: str, session: SessionDep, _: Viewer, choice: Annotated[LeaderboardRequest, Query()]
) -> HTMLResponse:
    environment = get_environment(session, name)
    of_environment = EnvironmentVersion.environment_id == environment.id
    numbers = session.scalars(select(EnvironmentVersion.number).where(of_environment)).all()
    board = get_leaderboard(session, name, choice.version, choice.exam) if numbers else None
    ranked = board.ranked if board else ()
    evaluated = [row for row in ranked if row.policy_kind is not PolicyKind.HUMAN]
    ends = [end for row in ranked if row.reward for end in (row.reward.low, row.reward.high)]
    top_two, top = (
        "/compare?" + urlencode({"run": [row.run_id for row in evaluated[:count]]}, doseq=True)
        if len(evaluated) > 1
        else ""
        for count in (2, LEADERBOARD_COMPARISON)
    )
    export = {"version": board and board.version, "exam": choice.exam}
    has_seats = board is not None and board.evaluated.typed_manifest.proctor.seats is not None
    context = {
        "environment": environment,
        "board": board,  # None without a published version
        **(matches_on(session, board) if board else {"matches": None}),
        "entrants": policy_options(session, board.evaluated.typed_manifest) if board and has_seats else (),
        "numbers": sorted(numbers, reverse=True),
        "low": min(ends, default=0.0),
        "high": max(ends, default=1.0),
        "top_two": top_two,
        "top": top,
        "export": f"/leaderboards/{name}/export.csv?"
        + urlencode({key: value for key, value in export.items() if value}),
        "least": MIN_COVERAGE,
    }
    return page(request, "results/leaderboard.html", context, block="board")


@router.get("/leaderboards/{name}/export.csv")
def export_leaderboard(
    name: str, session: SessionDep, _: Viewer, choice: Annotated[LeaderboardRequest, Query()]
) -> Response:
    """The ranked rows, then the others."""
    board = get_leaderboard(session, name, choice.version, choice.exam)
    head = (
        *("rank", "worst_rank", "name", "mark", "reward", "low", "high", "tasks", "normalized", "success"),
        *("success_rule", "completed", "rollouts", "tokens_a_rollout", "usd_a_rollout", "usd", "temperature", "date"),
        *("run_id", "reason"),
    )
    rows = []
    for row in [*board.ranked, *board.apart]:
        reward = row.reward
        rows.append(
            (
                *(row.rank, row.worst_rank, row.name, row.mark),
                *((reward.mean, reward.low, reward.high, reward.count) if reward else (None,) * 4),
                row.normalized and row.normalized.mean,
                *(row.success and row.success.mean, row.success_rule, row.coverage.completed, row.coverage.total),
                *(row.tokens, row.cost, row.total_cost, row.temperature),
                *(row.at.isoformat(), row.run_id, row.reason),
            )
        )
    return csv_response(f"{name}-v{board.version}-leaderboard", head, rows)
