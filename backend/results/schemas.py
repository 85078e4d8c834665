"""What operations of results take and return."""

import uuid
from typing import Annotated, Any

from pydantic import AliasPath, ConfigDict, Field
from sqlalchemy.orm import Session

from backend.domain.environments.reward_bounds import RewardScale
from backend.domain.statistics import Coverage, Estimate
from backend.domain.vocabulary import Phase, Split
from backend.errors import InvalidInput, NotFound
from backend.operations.ids import parse_id
from backend.operations.schemas import Cli, Request, Response
from backend.results.baselines import BaselineResponse
from backend.results.comparison import (
    MAX_SIDES,
    ColumnDifference,
    ComparisonNote,
    HeadToHead,
    LevelDifference,
    TaskPair,
)
from backend.results.figures import GroupShares, HistogramBar, SpentResponse
from backend.results.run_figures import FailureMessage, LevelFigures
from backend.results.scores import ComparedRun, best_step, side_of
from backend.runs.references import find_run


def side_at(session: Session, reference: str) -> ComparedRun:
    """The run at RUN, RUN@STEP, RUN@best or RUN@last. Raises NotFound or InvalidInput."""
    run, at, step = reference.partition("@")
    try:
        found = find_run(session, run.strip())
        number = int(step) if at and step not in {"best", "last"} else None
        if step == "best" and (number := best_step(session, found)) is None:
            raise InvalidInput(fields={"run": f"{found.name} has no best checkpoint yet. Write RUN@STEP or RUN@last."})
        return side_of(session, found, number)
    except (NotFound, ValueError) as error:
        if isinstance(error, NotFound) and parse_id(run):
            raise
        message = f"{reference[:80]} is neither the id of a run nor RUN@STEP, RUN@best or RUN@last."
        raise InvalidInput(fields={"run": message}) from error


class CompareRuns(Request):
    """Two to eight runs; the others are compared with the first. For two runs, also `a` and `b`."""

    model_config = ConfigDict(extra="ignore")

    run: list[str] = Field(
        default=[],
        max_length=MAX_SIDES,
        description="Ids of runs. `RUN@STEP` or `RUN@best` selects a training run's held-out evaluation. Default: the "
        "latest step.",
    )
    a: str | None = None
    b: str | None = None
    a_step: int | None = None
    b_step: int | None = None

    @property
    def references(self) -> list[str]:
        """The selected runs as addresses name them, without the empty choices of a form."""
        pair = [(self.a, self.a_step), (self.b, self.b_step)]
        named = [run if step is None else f"{run}@{step}" for run, step in pair if run]
        return named + [reference.strip() for reference in self.run if reference.strip()]

    def sides(self, session: Session) -> list[ComparedRun]:
        return [side_at(session, reference) for reference in self.references]


class CompareTasks(CompareRuns):
    """Two to eight runs to compare, and the number of tasks to list."""

    tasks: int = Field(1000, ge=0, le=100_000, description="Maximum number of tasks to list, half from either end.")


class StartBaseline(Request):
    run_id: uuid.UUID = Field(description="Run whose tasks the baseline plays.")
    script: str = Field(max_length=40, description="Baseline to evaluate: random or constant.")


class LeaderboardRequest(Request):
    model_config = ConfigDict(extra="ignore")

    version: int | None = Field(None, description="Version number. Default: the latest that was evaluated.")
    exam: str = Field("", description="Key of an evaluation setup. Default: the setup with the most policies.")


class ShowMatches(Request):
    version: int | None = Field(None, description="Version number. Default: the latest.")
    split: Split = Field(Split.HELDOUT, description="Games on tasks of this split.")


class StartRoundRobin(Request):
    policies: Annotated[list[str], Cli(option="--policy")] = Field(
        min_length=2,
        max_length=12,
        description="Two to twelve policies, by id or name, or `<policy id>:<checkpoint id>`.",
    )
    version: int | None = Field(None, description="Version number. Default: the latest.")
    split: Split = Field(Split.HELDOUT, description="Split to take the tasks from.")
    tasks: int = Field(50, ge=1, le=100_000, description="Number of tasks. Each pair plays each task from every seat.")
    first_task: int = Field(0, ge=0, description="Index of the first task.")
    seed: int = Field(0, ge=0, le=2**53, description="Sampling seed.")
    temperature: float = Field(1.0, ge=0, le=5, allow_inf_nan=False, description="Sampling temperature. 0: greedy.")


class RoundRobinResponse(Response):
    """The evaluations of a round robin."""

    environment: str
    version: int
    tag: str
    """Tag of all its runs."""
    run_ids: list[uuid.UUID]
    """A run for each pair. Pairs that had played these tasks already have no new run."""


def _at(first: str, *path: str | int, default: object = ...) -> Any:
    """A field that is read from an attribute of an attribute."""
    return Field(default, validation_alias=AliasPath(first, *path))


class SideResponse(Response):
    """One side of a comparison."""

    run_id: uuid.UUID = _at("side", "run", "id")
    name: str = _at("side", "run", "name")
    phase: Phase | None = _at("side", "phase")
    step: int | None = _at("side", "step")


class RankedSideResponse(SideResponse):
    """A side on the shared tasks."""

    policy: str = _at("side", "label")
    reward: Estimate | None = None
    normalized: Estimate | None = None
    """(reward − floor) / (gold − floor) within [0, 1]; null if floor or gold is unknown."""
    completed_tasks: int = _at("completed")
    """Tasks that it completed, shared or not."""


class PairingResponse(Response):
    """A run compared with the first one, paired over the shared tasks."""

    model_config = ConfigDict(populate_by_name=True)

    after: SideResponse
    wins: int = _at("test", "wins")
    losses: int = _at("test", "losses")
    ties: int = _at("test", "ties")
    sign_test: float | None = _at("test", "sign")
    """Two-sided p of the exact sign test over the tasks that differ."""
    permutation_test: float | None = _at("test", "permutation")
    """Two-sided p of the mean difference of the reward under random signs."""
    columns: list[ColumnDifference]
    """The reward first."""
    levels: list[LevelDifference]


class ComparisonResponse(PairingResponse):
    """Runs on the tasks that all of them completed. Fields of a pair are about the first and the second run."""

    before: SideResponse
    shared_tasks: int
    only_before: int
    only_after: int
    runs: list[RankedSideResponse]
    pairings: list[PairingResponse]
    """Every other run compared with the first."""
    matrix: list[list[HeadToHead]]
    """`matrix[i][j]`: run i against run j over the shared tasks."""
    remarks: list[ComparisonNote]
    baselines: list[BaselineResponse]
    tasks: list[TaskPair]
    """Most improved first."""


class ColumnResponse(Response):
    """One reward column, or the reward: its mean and 95% interval over tasks, null without completed rollouts."""

    name: str
    weight: float | None
    mean: float | None = _at("estimate", "mean", default=None)
    low: float | None = _at("estimate", "low", default=None)
    high: float | None = _at("estimate", "high", default=None)
    tasks: int = _at("estimate", "count", default=0)
    rollouts: int
    levels: dict[int, Estimate] = _at("by_level")
    distribution: list[HistogramBar] = _at("bars")


class PassResponse(Response):
    """pass@k and pass^k with 95% intervals over the tasks with at least k completed rollouts."""

    k: int
    pass_at_k: Estimate = _at("any")
    pass_hat_k: Estimate = _at("all")
    tasks: int


class SuccessResponse(Response):
    """The success rule and the success rate over tasks."""

    column: str = _at("rule", "column")
    at_least: float = _at("rule", "at_least")
    where: str = _at("rule", "expression")
    """Filter of the rollouts that succeed."""
    rate: Estimate | None


class CheatRateResponse(Response):
    """Impossible tasks that passed, with Wilson's 95% limits."""

    rate: float | None = _at("value")
    low: float
    high: float
    passed: int = _at("found")
    played: int = _at("looked_at")


class ScopeFiguresResponse(Response):
    coverage: Coverage
    scale: RewardScale | None
    """Floor and gold of the reward; null if one is unknown, or for a run on several environments."""
    normalized: Estimate | None
    """(reward − floor) / (gold − floor) within [0, 1], to compare environments."""
    success: SuccessResponse
    columns: list[ColumnResponse]
    """The reward first."""
    levels: list[LevelFigures]
    cheat_rate: CheatRateResponse | None
    """Over the whole run; null without impossible tasks, which other figures exclude."""


class EnvironmentFiguresResponse(ScopeFiguresResponse):
    """One environment of a run: its own columns, levels and success rule."""

    name: str
    version_id: uuid.UUID = _at("version", "id")
    version: int = _at("version", "number")


class FiguresResponse(ScopeFiguresResponse):
    """All figures of a run, or of one step of a training run. Averages exclude failed rollouts."""

    run_id: uuid.UUID = _at("scope", "run_id")
    phase: str | None = _at("scope", "phase")
    step: int | None = _at("scope", "step")
    passes: list[PassResponse] = _at("groups", "passes")
    environments: list[EnvironmentFiguresResponse]
    """One for each environment of a run on several; `levels` is empty then."""
    groups: GroupShares | None = _at("groups", "shares")
    """Groups with several completed rollouts."""
    statuses: dict[str, int] = _at("scoped", "statuses")
    stop_reasons: dict[str, int] = _at("scoped", "stop_reasons")
    failures: list[FailureMessage] = _at("messages")
    spent: SpentResponse = _at("scoped")
    rollouts_per_second: float | None
