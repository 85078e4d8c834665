"""Requests and responses of operations on studies."""

import uuid
from datetime import datetime
from typing import Annotated

from pydantic import Field, computed_field

from backend.domain.studies.effort import EffortMeasure, EffortResult
from backend.domain.studies.study import EffortSettings, OnsetResult, OnsetSettings, StudyKind
from backend.domain.vocabulary import RunStatus
from backend.operations.schemas import Progress, Request, Response

Temperature = Annotated[
    float | None,
    Field(gt=0, le=5, allow_inf_nan=False, description="Training runs: sampling temperature. Default: the run's own."),
]


class ListStudies(Request):
    kind: StudyKind | None = Field(None, description="Only studies of this kind.")


class StartOnset(Request):
    """The pattern to search for, and what each sampled checkpoint plays."""

    detector: str = Field(min_length=1, max_length=60, description="Detector with a confirmed rollout in the run.")
    cluster: str | None = Field(None, max_length=200, description="Cluster of its flags. Default: all of them.")
    tasks: int | None = Field(
        None, ge=8, le=2000, description="Held-out tasks that each checkpoint plays. Default: 128, or all of them."
    )
    group_size: int | None = Field(None, ge=1, le=64, description="Rollouts per task. Default: enough for 128 in all.")
    temperature: Temperature = None


class StartEffort(Request):
    """The checkpoint to study, what both sides play, and how replies are cut."""

    checkpoint_id: uuid.UUID | None = Field(
        None, description="Training runs: checkpoint to study. Default: the latest GRPO checkpoint with weights."
    )
    step: int | None = Field(None, ge=0, description="Training runs: step of the checkpoint, instead of its id.")
    tasks: int | None = Field(
        None, ge=1, le=2000, description="Training runs: held-out tasks for each side. Default: 64, or all of them."
    )
    group_size: int | None = Field(None, ge=1, le=64, description="Training runs: rollouts per task. Default: 1.")
    cuts: int = Field(11, ge=2, le=11, description="Number of fractions from 0 to 1 at which the reasoning is cut.")
    samples: int = Field(4, ge=1, le=32, description="Answers at each cut.")
    replies: int = Field(32, ge=1, le=512, description="Maximum number of replies to cut per side.")
    temperature: Temperature = None
    measure: EffortMeasure = Field(
        EffortMeasure.SUCCESS, description="Worth of an answer: its success, or its reward scaled from 0 to 1."
    )


class PatternResponse(Response):
    """A pattern that a verdict confirmed."""

    detector: str
    cluster: str | None
    """Null: all clusters of the detector."""
    title: str
    flagged: int
    confirmed: int
    """Rollouts that were reviewed as a hack or a broken reward."""
    first_step: int
    """Training step of the first confirmed rollout."""
    obstacle: str
    """Why its onset cannot be searched for; empty if it can."""


class RollBack(Response):
    """A checkpoint to branch from, and the version of the environment to continue with."""

    checkpoint_id: uuid.UUID
    run_id: uuid.UUID
    """The run of the checkpoint, which the branch starts from."""
    stage: str
    step: int
    is_pruned: bool
    newest_version: int
    is_own_version: bool
    """Whether the run already uses the newest version."""
    is_certified: bool
    """Whether a branch needs no reason: the version is the run's own or passed its checks."""


class CutReply(Response):
    """A reply whose reasoning was cut."""

    rollout_id: uuid.UUID
    task: str
    characters: int
    """Length of its reasoning."""
    values: list[float]
    """Mean worth of the answers at each fraction."""
    score: float
    """Area under the curve."""


class StudiedCheckpointResponse(Response):
    """A checkpoint of a study with its counts."""

    name: str
    stage: str
    step: int
    is_base: bool
    """The policy that GRPO started from."""
    checkpoint_id: uuid.UUID | None
    run_id: uuid.UUID | None
    """The evaluation that plays it."""
    rollouts: int | None
    """Completed rollouts; null until they were scanned."""
    flagged: int | None
    """Onset: rollouts that show the pattern."""
    chance: float | None
    """Onset: p of Fisher's exact test against the base rate, one-sided."""
    is_above: bool | None
    """Onset: above the base rate."""
    succeeded: int | None
    reasoned: int | None
    """Effort: successful rollouts whose last reply reasons before it answers."""
    chosen: int | None
    """Effort: number of replies to cut."""
    value: float | None = None
    """Onset: share of rollouts that show the pattern. Effort: mean area over the replies."""
    low: float | None = None
    high: float | None = None
    """95% interval of the value: Wilson for a share, Student's t for an area."""
    note: str = ""
    """Effort: why no reply can be cut; empty if one can, or until the rollouts were scanned."""
    curve: list[float] = Field(default=[])
    """Effort: mean over the replies at each fraction."""
    replies: list[CutReply] = Field(default=[])


class TaskAreas(Response):
    """The mean areas of both sides on a task."""

    task: str
    own: float | None
    base: float | None


class StudyResponse(Progress):
    """A study. `done` and `total` count checkpoints of an onset study, and rollouts or replies of an effort study."""

    table_columns = ("title", "kind", "status", "conclusion", "id")

    id: uuid.UUID
    run_id: uuid.UUID
    kind: StudyKind
    title: str
    status: RunStatus
    reason: str | None
    settings: OnsetSettings | EffortSettings
    result: OnsetResult | EffortResult | None
    conclusion: str
    """A sentence about the result; empty or `not known yet` without one."""
    checkpoints: list[StudiedCheckpointResponse]
    """The base first, then in the order of training."""
    evaluation_id: uuid.UUID | None
    """The evaluation that the study waits for."""
    fractions: list[float] = Field(default=[])
    """Effort: fractions of the reasoning that are kept."""
    by_task: list[TaskAreas] = Field(default=[])
    """Effort: largest difference first."""
    roll_back: RollBack | None = None
    """Onset: the last honest checkpoint."""
    created_at: datetime
    ended_at: datetime | None


class StudiableCheckpoint(Response):
    id: uuid.UUID
    name: str


class RunStudies(Response):
    """The studies of a run, and the studies that can be started."""

    run_id: uuid.UUID
    patterns: list[PatternResponse]
    """Confirmed patterns of a training run."""
    checkpoints: list[StudiableCheckpoint]
    """GRPO checkpoints of a training run that have weights, latest first."""
    last_honest: RollBack | None
    """The last checkpoint before every known or confirmed sign of a hack; null without any."""
    effort_obstacle: str
    """Why no effort study can be started; empty if one can."""
    studies: list[StudyResponse]
    """Newest first."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def is_finished(self) -> bool:
        """Whether no study is in progress."""
        return all(study.is_finished for study in self.studies)
