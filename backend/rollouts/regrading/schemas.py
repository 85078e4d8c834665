"""Requests and responses of regrading and replays. Forms of pages and JSON bodies share the fields."""

import uuid
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from backend.domain.rollouts.divergence import Difference
from backend.domain.rollouts.regrading import Weight
from backend.domain.statistics import Estimate
from backend.domain.vocabulary import Phase, RunKind, RunStatus
from backend.operations.schemas import Progress, Request, Response
from backend.rollouts.regrading.weights import TermOrigin, WeightsPreview
from backend.runs.schemas import RunDetailResponse, RunResponse

MAX_RUNS = 200
Where = Annotated[
    str, Field(max_length=2000, description="Filter on the rollouts, such as `win = 0 and tokens > 200`. Default: all.")
]
PhaseOfTraining = Annotated[Phase | None, Field(description="Training runs only. Default: `heldout`.")]
Override = Annotated[
    str, Field(max_length=2000, description="Reason to continue if regrading is not faithful. It is kept on the run.")
]


class WeightsForm(BaseModel):
    """Names and weights in the same order, as a form sends them."""

    model_config = ConfigDict(extra="ignore")

    where: Where = ""
    phase: PhaseOfTraining = None
    name: list[str] = []
    weight: list[Weight] = []

    @model_validator(mode="after")
    def _are_paired(self) -> Self:
        if len(self.name) != len(self.weight):
            raise ValueError("enter a weight for every column; 0 removes a column from the reward")
        return self

    def weights(self) -> dict[str, float]:
        return dict(zip(self.name, self.weight, strict=True))


class VersionForm(BaseModel):
    """A version to regrade by or to replay on."""

    model_config = ConfigDict(extra="ignore")

    where: Where = ""
    phase: PhaseOfTraining = None
    version_id: uuid.UUID
    override: Override = ""
    all_evaluations: bool = False
    """Every completed evaluation of this run's version, one new run each."""


class OverrideRegrading(Request):
    """The reason to regrade although it is not faithful."""

    reason: str = Field(min_length=10, max_length=2000, description="Reason, kept on the run.")


class RolloutSource(Request):
    """Runs whose stored rollouts are regraded or replayed, one new run each."""

    run_ids: list[uuid.UUID] = Field(default=[], max_length=MAX_RUNS, description="Runs to take rollouts from.")
    evaluations_of: uuid.UUID | None = Field(
        None, description="Instead of `run_ids`: every completed evaluation of this environment version."
    )
    rollout_ids: list[uuid.UUID] = Field(default=[], max_length=1000, description="Only these rollouts.")
    where: Where = ""
    phase: PhaseOfTraining = None
    name: str | None = Field(None, max_length=200, description="Name of the new run.")
    key: str | None = Field(
        None, max_length=100, description="Idempotency key: the same key returns the runs that it started first."
    )


class StartRegrading(RolloutSource):
    """Other weights, or another version's rewards, for stored rollouts."""

    weights: dict[str, Weight] | None = Field(
        None, max_length=200, description="Weight by column. Reward columns that are not named keep their weight."
    )
    version_id: uuid.UUID | None = Field(None, description="Version whose rewards to use.")
    override: Override = ""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.weights is None) == (self.version_id is None):
            raise ValueError("give either weights or a version")
        return self


class StartReplay(RolloutSource):
    """Stored replies, played on a version."""

    version_id: uuid.UUID = Field(description="Version to play on.")


class PreviewRegrading(Request):
    """Other weights for a run, without storing anything."""

    run_id: uuid.UUID
    weights: dict[str, Weight] = Field(max_length=200, description="Weight by column.")
    where: Where = ""
    phase: PhaseOfTraining = None


class RegradingBatch(Progress):
    """Runs that were started together."""

    batch: uuid.UUID
    runs: list[RunResponse]


class RewardTermResponse(Response):
    """A value that can carry a weight."""

    name: str
    origin: TermOrigin
    weight: float
    saw_reasoning: bool
    """A judge that was shown the policy's reasoning. Only the weight 0 is accepted."""


class RegradingPreview(Response):
    """The effect of other weights on a run."""

    columns: list[RewardTermResponse]
    """With the new weights."""
    offered: list[RewardTermResponse]
    """All terms that can carry a weight, with their current weight."""
    preview: WeightsPreview


class ColumnChange(Response):
    """A column before and after, over the rollouts that both runs completed; the reward first."""

    name: str
    before: float | None
    """Null if the source has no such column."""
    after: float | None
    difference: Estimate | None
    """After minus before over tasks, with its 95% interval."""
    weight_before: float | None
    weight_after: float | None


class RegradingCounts(Response):
    """Outcomes of the source rollouts in a regraded or replayed run."""

    rollouts: int
    completed: int
    failed: int
    changed: int
    """Completed with another reward than the source."""
    diverged: int
    """Differ from the source at some step."""
    replies_ended: int
    """The stored replies ran out before the episode ended."""
    replies_left: int
    """The episode ended before all stored replies were used."""
    most_common: str
    """The most frequent error message."""


class BeforeAfter(RegradingCounts):
    """A regraded or replayed run compared with its source."""

    run: RunDetailResponse
    source_run_id: uuid.UUID | None
    grounds: str
    """Why the result can be trusted."""
    columns: list[ColumnChange]
    diverging_steps: dict[int, int]
    """Number of rollouts by the first step that differs; 0 is the reset."""


class ColumnPair(Response):
    """One column of a rollout before and after."""

    name: str
    before: float | None
    after: float | None


class RolloutBeforeAfter(Response):
    """A rollout compared with its source."""

    rollout_id: uuid.UUID
    source_id: uuid.UUID | None
    columns: list[ColumnPair]
    differences: list[Difference]


class DraftScoreResponse(Response):
    """The rewards that a draft gives to stored rollouts."""

    id: uuid.UUID
    rollout_id: uuid.UUID
    environment: str
    is_stale: bool
    """The draft was saved since."""
    answer: dict[str, object] | None
    """Null while the draft is being played; then `this`, `cluster` and `history` with means before and after,
    `policies` in their new order, or `error`."""


class RegradedPolicy(Response):
    """A policy in one evaluation, on the tasks that all ranked policies share."""

    run_id: uuid.UUID
    name: str
    before: Estimate
    after: Estimate
    place_before: int
    place_after: int


class TurnedPair(Response):
    """Two policies whose order reversed. Differences are first minus second, paired by task."""

    first: str
    """The better one before."""
    second: str
    before: Estimate
    after: Estimate
    is_clear: bool
    """Both intervals exclude zero."""


class UnrankedPolicy(Response):
    """A policy that is not ranked."""

    run_id: uuid.UUID
    name: str
    reason: str


class PolicyRanking(Response):
    """The policies of one evaluation."""

    label: str
    tasks: int
    """Tasks that all policies share."""
    contenders: list[RegradedPolicy]
    """In the new order."""
    rank_correlation: float | None
    """Kendall's tau-b of the two orders; null if all policies earn the same on one side."""
    turned: list[TurnedPair]
    turned_count: int
    apart: list[UnrankedPolicy]
    is_changed: bool


class RegradedCheckpoint(Response):
    """A checkpoint that is the best of its run on one side."""

    checkpoint_id: uuid.UUID
    stage: str
    step: int
    before: Estimate
    after: Estimate
    is_pruned: bool


class BestCheckpointChange(Response):
    """The best checkpoint of a training run before and after."""

    run_id: uuid.UUID
    name: str
    before: RegradedCheckpoint
    after: RegradedCheckpoint
    examinations: int
    """Number of held-out evaluations."""
    difference: Estimate | None
    """New best minus old best by the new reward, paired by task; null if they are the same."""
    is_changed: bool


class MovedMean(Response):
    """A run whose new mean is outside the 95% interval of the old one."""

    run_id: uuid.UUID
    rescore_id: uuid.UUID
    name: str
    phase: Phase | None
    before: Estimate
    after: Estimate
    difference: Estimate
    """Paired by group."""
    rollouts: int


class Conclusions(Response):
    """Changed conclusions over all parts that are regraded."""

    is_changed: bool
    compared: int
    """Parts that were compared for means that moved."""
    rankings: list[PolicyRanking]
    """The largest first."""
    checkpoints: list[BestCheckpointChange]
    moved: list[MovedMean]
    """The largest change first."""


class HistoryPartResponse(Response):
    """A run of the environment, or one phase of a training run."""

    run_id: uuid.UUID
    name: str
    kind: RunKind
    version: int
    phase: Phase | None
    rescore_id: uuid.UUID | None
    """The regrading run; null if none was started."""
    status: RunStatus | None
    reason: str | None
    """Why the regrading was refused, was stopped or failed."""
    done: int
    total: int


class HistoryResponse(Response):
    """The history of an environment by one version's rewards."""

    environment: str
    version: int
    parts: list[HistoryPartResponse]
    missing: int
    """Parts without a regrading."""
    graded: int
    open: int
    unended: int
    """Refused, stopped or failed."""
    rollouts_done: int
    rollouts_asked: int
    conclusions: Conclusions
