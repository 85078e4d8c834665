"""The JSON API of results: a run's figures, running it again, comparing runs, leaderboards."""

import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Environment
from backend.errors import Conflict, InvalidInput, NotFound
from backend.evaluations import queries
from backend.evaluations.again import AgainRequest, run_again
from backend.evaluations.answers import RunDetailAnswer
from backend.evaluations.baselines import baselines
from backend.evaluations.compare_answer import ComparisonAnswer
from backend.evaluations.comparison import MOST_SIDES, Comparison, Side, compare, side_of, task_pairs
from backend.evaluations.figures_answer import FiguresAnswer
from backend.evaluations.leaderboard import Leaderboard, find_version, leaderboard
from backend.evaluations.leaderboard_answer import LeaderboardAnswer
from backend.evaluations.run_figures import FiguresChoice, run_figures
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
    run_id: uuid.UUID, session: SessionDep, actor: Author, asked: AgainRequest | None = None
) -> RunDetailAnswer:
    """Start an evaluation again, exactly as it was or with `changes`."""
    run = run_again(session, actor, queries.get_run(session, run_id), asked or AgainRequest())
    return RunDetailAnswer.of(queries.get_run(session, run.id))


class CompareQuery(BaseModel):
    """Runs, the first is what the others are held against; or, of two, `a` and `b`."""

    model_config = ConfigDict(extra="ignore")

    run: list[str] = Field(default=[], max_length=MOST_SIDES)
    """A run's id; of a training run `id@step` for one of its held-out examinations (left out: the newest)."""
    a: uuid.UUID | None = None
    b: uuid.UUID | None = None
    a_step: int | None = None
    b_step: int | None = None

    def chosen(self) -> list[tuple[uuid.UUID, int | None]]:
        """Ids and steps in their order; a form's empty choices are left out."""
        named = [(self.a, self.a_step), (self.b, self.b_step)]
        found = [(run_id, step) for run_id, step in named if run_id is not None]
        return found + [_read(reference) for reference in self.run if reference.strip()]


class ComparisonQuery(CompareQuery):
    """And how much is told of the tasks."""

    tasks: int = Field(default=1000, ge=0, le=100_000)
    """Tasks told: of more, half from either end."""


def _read(reference: str) -> tuple[uuid.UUID, int | None]:
    run_id, at, step = reference.strip().partition("@")
    try:
        return uuid.UUID(run_id), int(step) if at else None
    except ValueError as error:
        raise InvalidInput(fields={"run": f"{reference[:80]} is not a run's id, or id@step."}) from error


def sides_of(session: Session, wanted: CompareQuery) -> list[Side]:
    return [side_of(session, queries.get_run(session, run_id), step) for run_id, step in wanted.chosen()]


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


class LeaderboardQuery(BaseModel):
    """Which version, and which examination of it."""

    model_config = ConfigDict(extra="ignore")

    version: int | None = None
    """Left out: the newest that was evaluated."""
    exam: str = ""
    """Left out: the one that most contenders sat."""


@router.get("/leaderboards/{name}", tags=["runs"])
def get_leaderboard(
    name: str, session: SessionDep, _: Viewer, wanted: Annotated[LeaderboardQuery, Query()]
) -> LeaderboardAnswer:
    """Contenders of an environment version: ranked where they sat the same examination, apart with a reason else."""
    return LeaderboardAnswer.of(board_of(session, name, wanted))


def board_of(session: Session, name: str, wanted: LeaderboardQuery) -> Leaderboard:
    environment = environment_of(session, name)
    version = find_version(session, environment.id, wanted.version)
    if version is None:
        raise NotFound(f"{name} has no such version." if wanted.version else f"{name} has no published version.")
    return leaderboard(session, version, wanted.exam)


def environment_of(session: Session, name: str) -> Environment:
    environment = session.scalars(select(Environment).where(Environment.name == name)).one_or_none()
    if environment is None:
        raise NotFound(f"There is no environment named {name}.")
    return environment
