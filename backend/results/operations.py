"""The JSON API of results: a run's figures, running it again, comparing runs, leaderboards."""

import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from backend.errors import Conflict, InvalidInput
from backend.results.baselines import baselines
from backend.results.comparison import MOST_SIDES, Comparison, compare, task_pairs
from backend.results.comparison_responses import ComparisonAnswer
from backend.results.figures_responses import FiguresAnswer
from backend.results.leaderboard_responses import LeaderboardAnswer
from backend.results.requests import CompareQuery, LeaderboardQuery, board_of, sides_of
from backend.results.run_figures import FiguresChoice, run_figures
from backend.runs import queries
from backend.runs.rerun import RerunRequest, run_again
from backend.runs.responses import RunDetailResponse
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.shared import Shared

router = APIRouter(prefix="/api/v1")
_figures: Shared[FiguresAnswer] = Shared()
"""Of runs that somebody watches from the command line: folding a big run's rollouts takes a while."""


class NotComparable(Conflict):
    """These runs cannot be compared."""


@router.get("/runs/{run_id}/figures", tags=["runs"])
def get_figures(
    run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[FiguresChoice, Query()]
) -> FiguresAnswer:
    """Means with 95 % intervals, pass@k and pass^k, levels, groups, failures, tokens, cost and coverage."""
    run = queries.get_run(session, run_id)
    answer, _again = _figures.read(
        (run.id, wanted),
        time.monotonic(),
        lambda: FiguresAnswer.of(run, run_figures(session, run, wanted)),
        is_urgent=run.status.is_over,
    )
    return answer


@router.post("/runs/{run_id}/again", status_code=201, tags=["runs"])
def run_evaluation_again(
    run_id: uuid.UUID, session: SessionDep, actor: Author, asked: RerunRequest | None = None
) -> RunDetailResponse:
    """Start an evaluation again, exactly as it was or with `changes`."""
    run = run_again(session, actor, queries.get_run(session, run_id), asked or RerunRequest())
    return RunDetailResponse.of(queries.get_run(session, run.id))


class ComparisonQuery(CompareQuery):
    """And how much is told of the tasks."""

    tasks: int = Field(default=1000, ge=0, le=100_000)
    """Tasks told: of more, half from either end."""


@router.get("/compare", tags=["runs"])
def compare_runs(session: SessionDep, _: Viewer, wanted: Annotated[ComparisonQuery, Query()]) -> ComparisonAnswer:
    """Paired differences to the first run on the tasks that all completed, with 95 % intervals and two tests; who wins
    over whom; remarks on what differs between the runs; and the baselines. 409 where there is nothing to compare."""
    sides = sides_of(session, wanted)
    if not 2 <= len(sides) <= MOST_SIDES:
        raise InvalidInput(fields={"run": f"Name two to {MOST_SIDES} runs: `run=…&run=…`."})
    found = compare(session, sides)
    if not found.pairings:
        raise NotComparable(found.remarks[0].text)
    pairs = task_pairs(session, found, found.pairings[0], ends(found, wanted.tasks))
    return ComparisonAnswer.whole(found, pairs, baselines(session, sides[1].run, found.shared, found.sides))


def ends(found: Comparison, most: int) -> list[int]:
    """Positions of the tasks to tell, most improved first."""
    order: list[int] = found.pairings[0].order.tolist()
    if len(order) <= most:
        return order
    half = most // 2
    return order[: most - half] + (order[-half:] if half else [])


@router.get("/leaderboards/{name}", tags=["runs"])
def get_leaderboard(
    name: str, session: SessionDep, _: Viewer, wanted: Annotated[LeaderboardQuery, Query()]
) -> LeaderboardAnswer:
    """Contenders of an environment version: ranked where they sat the same examination, apart with a reason else."""
    return LeaderboardAnswer.of(board_of(session, name, wanted))
