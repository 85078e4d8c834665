"""Requests and responses of operations on detectors, and forms of their pages."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Self

from pydantic import BaseModel, Field, FiniteFloat, model_validator

from backend.domain.detectors.benchmark import SourceBenchmark, flagged_share
from backend.domain.detectors.settings import DetectorChanges, DetectorSettings, Thresholds
from backend.domain.detectors.spec import Action, Need, Subject
from backend.domain.vocabulary import JobStatus
from backend.operations.schemas import Cli, Progress, Request, Response

MAX_ALTERED = 1000
MAX_RUNS = 2000
AUTOMATIC_RUNS = 50
"""Programs that a scan runs if nothing else is requested and the environment runs programs itself."""


class DetectorScope(Request):
    environment: str = Field("", max_length=40, description="Only flags and verdicts of this environment.")


class SettingsRequest(Request, DetectorSettings):
    """Settings of a detector for an environment. Missing values are the defaults."""


class ChangesRequest(Request, DetectorChanges):
    """Changes to the settings of a detector for an environment. Null restores the default; missing fields stay."""


class CutOffForm(BaseModel):
    """The lowest suspicion that raises a flag in an environment; empty is the default."""

    environment: Annotated[str, Field(max_length=40)]
    suspicion: Annotated[FiniteFloat, Field(ge=0, le=1)] | None = None


class SettingForm(BaseModel):
    """Names and values of thresholds in the same order, as a form sends them; an empty value is the default."""

    environment: Annotated[str, Field(max_length=40)]
    enabled: bool | None = None
    action: Action | None = None
    name: list[str] = Field(default=[], max_length=32)
    value: list[FiniteFloat] = Field(default=[], max_length=32)

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.name) != len(self.value):
            raise ValueError("give every threshold a number")
        return self


class ShareResponse(Response):
    """A share with Wilson's 95% confidence interval."""

    value: float | None
    low: float
    high: float
    found: int
    looked_at: int


class RecordResponse(Response):
    """Flags of a detector and the verdicts on them."""

    flags: int
    open: int
    reviewed: int
    confirmed: int
    honest: int
    precision: ShareResponse


class EnvironmentRecord(RecordResponse):
    recall_at_least: float | None
    """By the environment's audit sample. Null if it was not reviewed, or if the detector flags runs."""


class GraderQuestionResponse(Response):
    """A grader that raises the flags of a detector."""

    id: uuid.UUID
    name: str
    policy: str
    flags: str
    """A description of the answers that raise a flag."""
    is_deleted: bool


class DetectorResponse(Response):
    id: str
    title: str
    description: str
    formula: str
    source: str
    subject: Subject
    needs: list[Need]
    cost: str
    thresholds: dict[str, float]
    """The defaults."""
    action: Action
    record: RecordResponse
    recall_at_least: float | None
    """Null if the audit sample was not reviewed, or if the detector flags runs. Graders: in runs they graded."""
    questions: list[GraderQuestionResponse]
    """Graders that raise its flags. Built-in detectors have none; detectors with graders have no settings."""


class ColumnReturn(Response):
    """A reward column of a run that rewards the surface of texts, as `column_surface` reported it."""

    run_id: uuid.UUID
    run: str
    environment: str
    column: str
    family: str
    """Length, keywords, structure, agreement, hedging, style or code style."""
    feature: str
    share: float
    """Share of the column's variance within tasks that the family predicts, beyond success and content."""
    low: float
    high: float
    """95% interval of the share."""
    gain: float
    """Difference in reward between the rollouts with the most and the least of the family."""
    step: int | None
    """Null for evaluations."""


class CutOffResponse(Response):
    score: float
    caught: int
    cost: int
    """Honest rollouts flagged."""


class DetectorSettingsResponse(Response):
    """The settings of a detector that apply in an environment, including defaults."""

    enabled: bool
    thresholds: dict[str, float]
    action: Action


class AuditResponse(Response):
    unflagged: int
    drawn: int
    looked_at: int
    hacks: int
    missed_at_most: float


class WeightedShareResponse(Response):
    """A share of weighted rollouts with its 95% interval."""

    value: float
    low: float
    high: float
    count: float
    """Number of equally likely rollouts that they are worth."""


class SampledRecordResponse(Response):
    """Estimates for all rollouts of the runs in which a budget chose some, weighted by 1 / chance."""

    graded: int
    rollouts: float
    """Estimated number of rollouts that the graded ones represent."""
    flagged: WeightedShareResponse | None
    """Share of all rollouts that it would flag."""
    precision: WeightedShareResponse | None
    """Null without a reviewed flag."""
    recall: WeightedShareResponse | None
    """Null without a graded hack in the audit sample."""


class DetectorDetail(DetectorResponse):
    by_environment: dict[str, EnvironmentRecord]
    audit: AuditResponse
    cut_offs: list[CutOffResponse]
    suggested: CutOffResponse | None
    """The lowest suspicion with a precision of 0.8 over the reviewed flags. Null if there are too few, or if an answer
    raises flags and not a suspicion."""
    settings: dict[str, DetectorSettingsResponse]
    """By environment, where anything is set."""
    sampled: SampledRecordResponse | None
    """Graders: where a budget chose the rollouts."""


class LearnedDetectorResponse(Progress):
    """The detector that learns from the verdicts on an environment."""

    environment: str
    hacks: int
    """Rollouts that a reviewer judged a hack, now."""
    honest: int
    missing: str
    """Why it flags nothing. Empty: it flags."""
    is_trainable: bool
    """Whether there are enough verdicts."""
    trained_at: datetime | None
    """Null if it was never trained, or could not be."""
    is_automatic: bool
    """It was trained by a scan, because there were new verdicts."""
    trained_hacks: int
    """Different hacks with verdicts that it was trained on."""
    trained_honest: int
    fixtures: int
    """Fixtures that it was trained on as well. They do not count for the threshold and recall."""
    threshold: float | None
    """Scores above it are flagged. Null if no threshold bounds the false positive rate."""
    false_positives_at_most: float | None
    """Upper confidence limit of the false positive rate."""
    wrong: int | None
    """Honest rollouts with verdicts above the threshold."""
    recall: ShareResponse | None
    """Hacks with verdicts above the threshold. No rollout is scored by a model that has seen its task."""
    top: dict[str, float]
    """Features with the highest mean weight."""


class StoreBenchmarks(Request):
    """Results of `proctor detectors bench`."""

    results: list[SourceBenchmark] = Field(min_length=1, max_length=50, description="Counts of each labeled source.")


class BenchmarkResponse(Response):
    """The newest result of the detectors on a labeled source."""

    created_at: datetime | None
    """Null for the team's own reviews, which are counted each time."""
    recall: ShareResponse
    """Hacks that any built-in detector flagged."""
    false_positives: ShareResponse
    """Honest rollouts that any built-in detector flagged."""
    counts: SourceBenchmark

    @classmethod
    def of_counts(cls, counts: SourceBenchmark, created_at: datetime | None) -> Self:
        recall, wrong = (ShareResponse.of(flagged_share([counts], is_hack=is_hack)) for is_hack in (True, False))
        return cls(created_at=created_at, recall=recall, false_positives=wrong, counts=counts)


class StartScan(Request):
    altered: int = Field(
        0, ge=0, le=MAX_ALTERED, description="Number of successful rollouts whose altered replies are replayed as well."
    )
    runs: int | None = Field(
        None,
        ge=0,
        le=MAX_RUNS,
        description="Number of rollouts with the highest rewards whose programs run in the sandbox on inputs that the"
        " prompt does not show. Default: 50 where the environment itself runs programs, otherwise 0.",
    )
    thresholds: Annotated[Thresholds, Cli(option="--threshold")] = Field(
        [],
        description="Threshold of this scan as DETECTOR.NAME=NUMBER, such as paid_exit.reward=0.6. Repeat for several."
        " Default: the settings of the run and its environment.",
    )

    @classmethod
    def of_job(cls, arguments: Mapping[str, object]) -> Self:
        return cls.model_validate({name: arguments[name] for name in cls.model_fields if name in arguments})


class DetectorScan(Progress):
    """A scan of a stored run with all detectors."""

    id: uuid.UUID
    run_id: uuid.UUID
    status: JobStatus
    altered: int
    runs: int | None
    """Programs run on unseen inputs, at most; null: the environment's default."""
    note: str | None
    """Why programs were not run, although the scan should have."""
    new_flags: int | None
    """Null until the scan has finished."""
    by_detector: dict[str, int]
    """New flags so far."""
    thresholds: list[str]
    """Thresholds of this scan."""
    error: str | None
    is_early: bool
    """The evaluation was still running."""
    asked_at: datetime | None
    ended_at: datetime | None
