"""Requests and responses of operations on training runs and examples. Free of the web: jobs launch runs too."""

import shlex
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, model_validator

from backend.domain.detectors.spec import Action
from backend.domain.training.advice import Advice
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import FindingStatus, PreflightFinding
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, PreflightStatus, RunStatus
from backend.errors import InvalidInput
from backend.operations.schemas import FilterForm, ListRequest, Progress, Request, Response
from backend.training.setting_texts import read
from backend.web.field_messages import field_messages

_Number = Annotated[int | None, Field(ge=1)]
VersionNumber = Annotated[_Number, BeforeValidator(lambda value: None if value == "" else value)]
Reason = Annotated[str | None, Field(max_length=2000)]
SftFormat = Literal["jsonl", "huggingface"]


class TrainingRequest(Request):
    """A training run to start. Settings that are not given come from the preset, else from the defaults."""

    version_id: uuid.UUID = Field(description="Environment version to train on.")
    preset: str | None = Field(None, max_length=60, description="Name of a preset. `configuration` overrides it.")
    configuration: dict[str, Any] = Field({}, description="Settings as nested JSON; may be partial.")
    name: str | None = Field(
        None,
        max_length=80,
        pattern=r"^[^\x00-\x1f]+$",
        description="Name of the run and its policy. Default: made from the name of the environment.",
    )
    without_certificate: Reason = Field(None, description="Why to train on a version that has not passed its checks.")
    content_hash: str | None = Field(None, max_length=80, description="Refuse a version with another content hash.")
    preflight_id: uuid.UUID | None = Field(None, description="Start from the settings of this pre-flight.")
    again: uuid.UUID | None = Field(None, description="Training run that is repeated. The new run links to it.")
    key: str | None = Field(
        None, max_length=100, description="Any text. A repeated request with the same key returns the run it started."
    )


def resolve_configuration(
    preset: str | None, choices: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> TrainingConfiguration:
    """Merge settings over the preset, over `base`, over the defaults.

    Raises InvalidInput with the dotted name of each wrong setting.
    """
    if preset and preset not in PRESETS:
        raise InvalidInput(fields={"preset": f"There is no preset {preset}. Choose one of: {', '.join(PRESETS)}."})
    known = PRESETS[preset].configuration.resolved() if preset else base or {}
    try:
        return TrainingConfiguration.model_validate(_merge(known, read(TrainingConfiguration, choices)))
    except ValidationError as error:
        raise InvalidInput(fields=field_messages(error)) from error


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


class PresetResponse(Response):
    """A tested training configuration."""

    title: str
    environment: str
    """Environment that it was tested on; empty: any."""
    about: str
    suits: str
    """What to use it for."""
    takes: str
    """How long it takes."""
    seen: str
    """Results so far."""
    configuration: dict[str, object]


class ListSettings(Request):
    preset: str | None = Field(None, max_length=60, description="Show this preset's values instead of the defaults.")


class TrainingSetting(Response):
    """One setting of a training run."""

    name: str
    """Dotted name, as in `--set` and configuration files."""
    section: str
    """Title of its section on the launch page."""
    default: str
    """As text that `--set` reads; empty: none."""
    one_of: list[str]
    """Allowed values, if there are few."""
    only: str
    """The settings with which it has an effect: `model.source=base|checkpoint`, alternatives separated by a semicolon;
    empty: always."""
    help: str


class StartedTraining(Response):
    """A training run that was queued."""

    id: uuid.UUID
    name: str
    status: RunStatus
    policy_id: uuid.UUID | None
    configuration: dict[str, object]


class PreflightResponse(Progress):
    """Checks of a training run before it starts. Findings are added while a worker runs the remaining checks."""

    id: uuid.UUID
    version_id: uuid.UUID
    environment: str
    status: PreflightStatus
    verdict: FindingStatus
    """The most severe finding so far."""
    findings: list[PreflightFinding]
    progress: dict[str, object]
    reason: str | None
    """Why the checks failed to run."""
    advice: Advice | None
    """The recipe that suits what was measured; null until the checks have played episodes and ended."""
    arithmetic: str
    configuration: dict[str, object]
    created_at: datetime
    ended_at: datetime | None


class AlarmAnswerOption(Response):
    """An answer to an alarm that has an effect in the current state of the run."""

    answer: AlarmAnswer
    label: str


class AlarmResponse(Response):
    """A problem in a training run."""

    id: uuid.UUID
    name: str
    title: str
    step: int
    sentence: str
    """The observation."""
    cause: str
    """The most common cause."""
    advice: str
    evidence: dict[str, object]
    action: AlarmAction
    """The automatic reaction of the run."""
    answer: AlarmAnswer | None
    """The answer of a team member."""
    answered_by: uuid.UUID | None
    answered_at: datetime | None
    is_open: bool
    """The condition still holds and the alarm is unanswered."""
    created_at: datetime
    answers: list[AlarmAnswerOption]
    """Possible answers; empty if it is already answered."""


class AlarmList(Response):
    items: list[AlarmResponse]
    """Newest first."""
    thresholds: dict[str, object]
    """The current alarm settings of the run."""


class AnswerAlarm(Request):
    answer: AlarmAnswer = Field(description="One of the `answers` of the alarm.")
    version: VersionNumber = Field(
        None, description="Roll back only: version of the environment for the branch, such as one with a fixed reward."
    )
    without_certificate: Reason = Field(None, description="Why to train on a version that has not passed its checks.")

    @model_validator(mode="after")
    def _version_needs_a_branch(self) -> "AnswerAlarm":
        if self.version is not None and self.answer is not AlarmAnswer.ROLL_BACK:
            raise ValueError("only roll_back takes another version")
        return self


class AnsweredAlarm(Response):
    alarm: AlarmResponse
    branch_run_id: uuid.UUID | None
    """The branch that a roll back started."""
    page: str = Field(exclude=True)
    """The page that shows the effect, with this notice."""
    notice: str = Field(exclude=True)


class SettingChangeResponse(Response):
    """A setting that was changed during training."""

    id: uuid.UUID
    name: str
    before: JsonValue
    after: JsonValue
    step: int | None
    """The first step that used it; null while the change is pending."""
    alarm_id: uuid.UUID | None
    asked_by: uuid.UUID | None
    """Null: the run changed it because of an alarm."""
    created_at: datetime


class RunSettings(Response):
    settings: dict[str, object]
    """Settings that can be changed during training, with their current values."""
    changes: list[SettingChangeResponse]


class ChangeSettings(Request):
    changes: Annotated[
        dict[str, JsonValue],
        Field(min_length=1, max_length=100, description='By dotted name: `{"grpo.learning_rate": 2e-4}`.'),
    ]


class InterventionResponse(Response):
    """An action of a detector at one training step."""

    id: uuid.UUID
    step: int
    detector: str
    action: Action
    rollouts: int
    """Number of flagged rollouts. For `screen`, they were excluded from the gradient of this step."""
    sentence: str
    alarm_id: uuid.UUID | None
    """The alarm, if the run was paused or stopped."""
    created_at: datetime


class DetectorActionResponse(Response):
    """What happens when a detector flags a rollout of this run."""

    wanted: str
    """The run's own setting; `as_set`: the setting of the environment, else the default."""
    action: Action
    """The action in force."""
    is_enabled: bool
    thresholds: dict[str, float]
    """Thresholds that the run sets itself."""


class InterventionList(Response):
    items: list[InterventionResponse]
    """Newest first."""
    actions: dict[str, DetectorActionResponse]


class StartBranch(Request):
    checkpoint_id: uuid.UUID | None = Field(None, description="Checkpoint to start from.")
    step: int | None = Field(
        None, ge=0, description="Instead of a checkpoint: its GRPO step. 0: the weights before GRPO."
    )
    changes: dict[str, JsonValue] = Field({}, description="Settings to change, by dotted name.")
    version: VersionNumber = Field(
        None, description="Another version of the environment, such as one with a fixed reward. Default: the run's own."
    )
    without_certificate: Reason = Field(None, description="Why to train on a version that has not passed its checks.")


class BranchResponse(Response):
    """A training run that continues from a checkpoint of another run."""

    id: uuid.UUID
    name: str
    status: RunStatus
    source_run_id: uuid.UUID | None
    branch_step: int | None
    policy_id: uuid.UUID | None


class ExampleFileResponse(Response):
    """Uploaded conversations."""

    table_columns = ("name", "conversations", "size_bytes", "created_at", "id")

    id: uuid.UUID
    name: str
    conversations: int
    size_bytes: int
    statistics: dict[str, object]
    created_at: datetime
    deleted_at: datetime | None
    """When it was deleted. It can be restored for a week."""


class ExampleFileDetail(ExampleFileResponse):
    examples: list[dict[str, object]]
    """The first three conversations."""


class PairExample(Response):
    """Two episodes of the same task, of which the first is preferred."""

    reason: str
    """`verdicts` or `rewards`"""
    task: str
    chosen_id: uuid.UUID
    rejected_id: uuid.UUID
    chosen_reward: float | None
    rejected_reward: float | None
    chosen: list[dict[str, str]]
    """Messages of the preferred episode."""
    rejected: list[dict[str, str]]


class PairPreviewResponse(Response):
    """The pairs that preference training would learn from."""

    pairs: int
    found: int
    """Number of pairs before a sample was drawn."""
    fewest: int
    """Number of pairs without which a run is refused."""
    tasks: int
    """Number of tasks with a pair."""
    rollouts: int
    """Number of rollouts on training tasks that were considered."""
    by_reason: dict[str, int]
    runs: list[uuid.UUID]
    warnings: list[str]
    examples: list[PairExample]


class ListExampleFiles(ListRequest):
    limit: int = Field(50, ge=1, le=500, description="Maximum number of files in this page.")


class SftFilter(FilterForm, Request):
    """Conversations of runs that become training data."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    run: list[uuid.UUID] = Field(default=[], max_length=50, description="Runs to take conversations from.")
    best_of_group: bool = Field(
        False, description="The rollout with the highest reward of each group; ties: the first."
    )
    min_reward: float | None = Field(None, allow_inf_nan=False, description="Minimum reward.")
    honest_only: bool = Field(
        False, description="Only rollouts with the verdict honest. Hacks and broken rewards never pass."
    )
    without_flags: bool = Field(False, description="Only rollouts that no detector flagged.")
    understood_only: bool = Field(False, description="Only conversations whose every reply could be parsed.")
    where: str = Field("", max_length=2000, description="Filter on the rollouts. Default: all rollouts.")
    heldout: bool = Field(False, description="Include held-out tasks, which should not be trained on.")
    repeats: bool = Field(False, description="Keep repeated conversations.")

    def fields(self) -> list[tuple[str, str]]:
        """The filter as fields of a form or query string."""
        values = self.model_dump(mode="json", exclude_defaults=True, include=set(SftFilter.model_fields))
        pairs = [(name, each) for name, value in values.items() for each in (value if name == "run" else [value])]
        return [(name, "true" if value is True else str(value)) for name, value in pairs]

    def command(self) -> str:
        """The `proctor` command with the same filter."""
        options = [
            f"--{name.replace('_', '-')}" + ("" if value == "true" else f" {shlex.quote(value)}")
            for name, value in self.fields()
            if name != "run"
        ]
        return " ".join(["proctor data sft", " ".join(map(str, self.run)), *options, "-o FOLDER"])


class DownloadSft(SftFilter):
    """Training data as a file."""

    format: SftFormat = Field("jsonl", description="Chat JSONL, or a zipped folder for Hugging Face's `datasets`.")


class MarkDemonstrations(SftFilter):
    """Conversations to mark as demonstrations for the SFT warm-up."""

    is_wanted: bool = Field(True, description="False removes the mark.")


class SftPreview(Response):
    """Size and samples of the training data that a filter selects."""

    conversations: int = 0
    repeats: int = 0
    """Skipped as repeated conversations."""
    near_repeats: int = 0
    """Included, although they differ from another only in numbers, case and punctuation."""
    heldout: int = 0
    """Skipped because their tasks are held out."""
    tokens: int = 0
    """Estimated at four characters each."""
    tokens_written: int = 0
    is_whole: bool = True
    """False if only the first 20,000 conversations were read."""
    samples: list[dict[str, object]] = Field(default=[])


class MarkedDemonstrations(Response):
    changed: int
    """Number of rollouts whose mark changed."""
