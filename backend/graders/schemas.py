"""Requests and responses of operations on graders."""

import json
import uuid
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints

from backend.core.queue import answer_of
from backend.core.tables import Job
from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.evidence import GroupFinding, Quote
from backend.domain.graders.settings import (
    DEFAULT_INSTRUCTION,
    AnswerType,
    Controls,
    Criterion,
    GraderKind,
    JudgeScale,
    JudgeSettings,
    JudgeTarget,
    QuestionSettings,
    Slug,
)
from backend.domain.text import split_list
from backend.domain.vocabulary import GradeStatus, RunStatus, Verdict
from backend.graders.queries import GradedRun
from backend.graders.tables import Grader
from backend.operations.schemas import Cli, ListRequest, Progress, Request, Response

_CONTROLS = Controls()


def _read_criteria(value: object) -> object:
    """Forms and commands have a criterion per line: `name, weight: description`. JSON has objects."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    if not isinstance(value, str):
        return value
    if value.strip().startswith("["):
        return json.loads(value)
    criteria = []
    for line in filter(str.strip, value.splitlines()):
        head, colon, description = line.partition(":")
        name, _, weight = head.partition(",")
        if not colon or not description.strip():
            raise ValueError(f"Write `name, weight: description`, not `{line.strip()[:60]}`")
        criteria.append({"name": name.strip(), "weight": weight.strip() or 1.0, "description": description.strip()})
    return criteria


Words = Annotated[list[str], BeforeValidator(split_list)]
LongText = Annotated[str, StringConstraints(strip_whitespace=True, max_length=20_000)]
Where = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=1000),
    Field(description="Filter on the completed rollouts, such as `reward > 0 and level = 2`. Default: all."),
]
Cluster = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=300),
    Field(
        description="Contrasts only: compare this cluster of flags with the rest of its groups, `detector: cluster`."
    ),
]


class GraderRequest(Request):
    """A grader to create or update. Fields of other kinds are ignored."""

    name: Annotated[
        Slug,
        Field(description="Lowercase letters, digits and underscores. Names the rollout field, such as `judge.NAME`."),
        Cli(argument=True),
    ]
    policy: str = Field(max_length=100, description="Name or id of the policy that grades: an endpoint or a script.")
    kind: GraderKind = Field(GraderKind.JUDGE, description="Kind of result for each rollout.")
    instruction: Annotated[
        LongText,
        Field(description="Judges: what to judge, a Jinja template over the rollout's fields."),
        Cli(reads_file=True),
    ] = DEFAULT_INSTRUCTION
    system: Annotated[LongText, Field(description="Judges: system prompt."), Cli(reads_file=True)] = ""
    target: JudgeTarget = Field(JudgeTarget.ANSWER, description="Judges: the part of the rollout to judge.")
    scale: JudgeScale = Field(JudgeScale.UNIT, description="Judges: the scale of the score.")
    criteria: Annotated[
        list[Criterion],
        BeforeValidator(_read_criteria),
        Field(max_length=12, description="Judges with a rubric: `name, weight: description`; repeatable."),
        Cli(option="--criterion"),
    ] = Field(default=[])
    fold_lowest: Annotated[
        bool, Field(description="Judges of steps: the lowest score counts, not the mean."), Cli(option="--lowest")
    ] = False
    repeats: int = Field(1, ge=1, le=10, description="Judges: requests per rollout.")
    shows_reference: Annotated[
        bool,
        Field(description="Judges: show the correct answer, if the environment provides one."),
        Cli(option="--reference"),
    ] = False
    control_prompt: LongText = Field(_CONTROLS.prompt, description="Judges: question of the controls.")
    control_good: LongText = Field(_CONTROLS.good, description="Judges: a clearly good answer to it.")
    control_bad: LongText = Field(_CONTROLS.bad, description="Judges: a clearly bad answer to it.")
    text: Annotated[
        str,
        StringConstraints(strip_whitespace=True, max_length=4000),
        Field(description="Questions: the question in plain language. Monitors and contrasts: what else to look for."),
        Cli(reads_file=True),
    ] = ""
    answers: AnswerType | None = Field(None, description="Questions: type of the answers. Default: yes_no.")
    labels: Words = Field(default=[], description="Questions: possible answers, separated by commas.")
    flags: Words = Field(default=[], description="Questions: answers that raise a flag, separated by commas.")
    flags_from: float = Field(
        0.7, ge=0, le=1, allow_inf_nan=False, description="Monitors and contrasts: lowest suspicion that raises a flag."
    )
    each: int = Field(4, ge=1, le=6, description="Contrasts: number of rollouts per side.")
    shows_reasoning: Annotated[
        bool,
        Field(description="Show the policy's reasoning. The grade can then not be part of a reward."),
        Cli(option="--reasoning"),
    ] = False
    temperature: float = Field(
        0.0, ge=0, le=2, allow_inf_nan=False, description="Sampling temperature. Repeats need more than 0."
    )
    max_tokens: int = Field(1024, ge=16, le=32_768, description="Maximum tokens per reply.")
    concurrency: int = Field(8, ge=1, le=256, description="Maximum parallel requests.")

    def settings(self) -> JudgeSettings | QuestionSettings:
        """Raises ValidationError."""
        shared = {"shows_reasoning", "temperature", "max_tokens", "concurrency"}
        if self.kind is GraderKind.JUDGE:
            own = {"instruction", "system", "target", "scale", "repeats", "shows_reference"}
            return JudgeSettings.model_validate(
                {
                    **self.model_dump(include=shared | own),
                    "criteria": self.criteria if self.scale is JudgeScale.RUBRIC else (),
                    "fold": "lowest" if self.fold_lowest else "mean",
                    "controls": {"prompt": self.control_prompt, "good": self.control_good, "bad": self.control_bad},
                }
            )
        is_question = self.kind is GraderKind.QUESTION
        answers = self.answers or (AnswerType.LABELS if self.labels else AnswerType.YES_NO)
        return QuestionSettings.model_validate(
            {
                **self.model_dump(include=shared | {"kind", "text", "flags_from", "each"}),
                "answers": answers if is_question else AnswerType.SUSPICION,
                "labels": self.labels if is_question and answers is AnswerType.LABELS else (),
                "flags": self.flags if is_question else (),
            }
        )


class CreateGrader(GraderRequest):
    """A grader to create."""


class UpdateGrader(GraderRequest):
    """The new name, policy and settings of a grader. Fields that are not given get their defaults."""


class ListGraders(Request):
    kind: GraderKind | None = Field(None, description="Only graders of this kind.")


class RunGrader(Request):
    where: Where = ""
    cluster: Cluster = ""
    sample: bool = Field(False, description="Continue the sample that a budget chose, instead of grading all rollouts.")


_Dollars = Annotated[float | None, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


class SetBudget(Request):
    """The budget of a grader for automatic work on the runs of an environment."""

    environment: Annotated[
        str, Field(min_length=1, max_length=100, description="Name or id of an environment."), Cli(argument=True)
    ]
    rollouts_per_run: int = Field(
        100, ge=1, le=100_000, title="Rollouts per run", description="Maximum number of rollouts of a run."
    )
    rollouts_per_day: int = Field(
        500, ge=1, le=1_000_000, title="Rollouts per day", description="Maximum number of rollouts per day (UTC)."
    )
    cost_per_run: _Dollars = Field(
        None, title="Dollars per run", description="Maximum US dollars per run. Default: no limit."
    )
    cost_per_day: _Dollars = Field(
        None, title="Dollars per day", description="Maximum US dollars per day (UTC). Default: no limit."
    )


class TryGrader(Request):
    rollout: str = Field("", max_length=300, description="Id of a rollout to grade.")
    run: str = Field("", max_length=100, description="Run to take three rollouts from; contrasts: one group.")
    where: Where = ""


class FlagAnswers(Request):
    answers: Words = Field(
        default=[],
        max_length=12,
        description="Questions: answers to flag, separated by commas. Default: its own flags.",
    )


class ListGrades(ListRequest):
    """Grades of one grader on one run."""


class GraderResponse(Response):
    """A grader."""

    table_columns = ("name", "kind", "policy", "id")

    id: uuid.UUID
    name: str
    kind: GraderKind
    policy_id: uuid.UUID
    policy: str
    settings: JudgeSettings | QuestionSettings
    created_at: datetime

    @classmethod
    def of(cls, row: Any) -> Self:
        return cls.from_row(row, policy=row.policy.name)


class GradingEstimateResponse(Response):
    """How much work and money a grader needs on a run."""

    count: int
    """Rollouts, or groups of a contrast, without a grade."""
    graded: int
    """Rollouts or groups that already have a grade."""
    tokens_in: float | None = None
    tokens_out: float | None = None
    cost: float | None = None
    """US dollars, canaries included; null without a price."""
    basis: str = ""
    """Basis of the estimate."""
    problem: str = ""
    """Why there is nothing to grade."""


class BudgetResponse(Response):
    """The budget of a grader for the runs of an environment, and its use today."""

    table_columns = (
        "environment",
        "rollouts_today",
        "rollouts_per_day",
        "rollouts_per_run",
        "cost_today",
        "cost_per_day",
        "cost_per_run",
        "problem",
    )
    table_empty = "No budget. This grader runs only on request."

    grader_id: uuid.UUID
    grader: str
    environment: str
    rollouts_per_run: int
    rollouts_per_day: int
    cost_per_run: float | None
    cost_per_day: float | None
    rollouts_today: int
    """Chosen since midnight UTC."""
    cost_today: float
    """US dollars, canaries included."""
    problem: str
    """Why nothing more is graded today; empty if the budget has something left."""


class MeanEstimate(Response):
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    high: float
    count: int


class Disagreement(Response):
    """A rollout on which a grader and a person disagree."""

    rollout_id: uuid.UUID
    score: float
    verdict: Verdict


class AgreementResponse(Response):
    """A grader's scores compared with people's verdicts: honest against hack and broken reward."""

    count: int
    honest: int
    auc: float
    threshold: float
    accuracy: float
    kappa: float
    disagreements: list[Disagreement]


class AnswerCountResponse(Response):
    """The frequency of an answer and the verdicts on those rollouts."""

    answer: str
    count: int
    verdicts: dict[Verdict, int]


class GradedRunResponse(Progress):
    """One grader's work on one run."""

    table_columns = ("grader", "kind", "status", "done", "total", "failed", "cost")

    grader_id: uuid.UUID
    run_id: uuid.UUID
    grader: str
    kind: GraderKind
    status: RunStatus
    reason: str | None
    where: str
    cluster: str | None
    is_sampled: bool
    """Only a random sample that a budget chose."""
    graded: int
    """Rollouts, or groups of a contrast, with a grade."""
    failed: int
    """Rollouts without a grade because of an error. They are in no mean."""
    waiting: int
    score: MeanEstimate | None
    """Mean score, or mean value of ordered answers."""
    spread: float | None
    """Judges: mean standard deviation over the repeats."""
    confidence: float | None
    uncited: int
    """Grades without a quote that was found."""
    citations: int
    dropped: int
    """Quotes that were not found."""
    counts: list[AnswerCountResponse]
    agreement: AgreementResponse | None
    high_is_honest: bool
    """Whether high scores go with the verdict *honest*."""
    findings: list[GroupFinding]
    """Contrasts only."""
    tokens_in: int
    tokens_out: int
    cost: float | None
    canaries: CanaryReport | None

    @classmethod
    def of_work(cls, graded: GradedRun) -> "GradedRunResponse":
        work, figures = graded.work, graded.figures
        state = str(work.status) if work.status is not RunStatus.RUNNING else "grading"
        stored: dict[str, Any] = {
            name: getattr(source, name)
            for source in (work, figures, graded)  # later ones count
            for name in cls.model_fields
            if hasattr(source, name)
        }
        computed = {
            "is_successful": work.status is RunStatus.COMPLETED and not figures.failed,
            "total": work.total,
            "message": f"{graded.grader.name}: {work.reason or state}",
            "grader": graded.grader.name,
            "kind": graded.grader.kind,
        }
        return cls.model_validate(stored | computed)


class GradeResponse(Response):
    """The result of one grader on one rollout."""

    table_columns = ("rollout_id", "status", "score", "answer", "reason", "cost")

    id: uuid.UUID
    grader_id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID
    status: GradeStatus
    score: float | None
    """Judges: mean of the repeats in [0, 1]. Other kinds: the answer as a number. Null without a grade."""
    spread: float | None
    verdicts: list[dict[str, object]]
    """Judges: each repeat with its reason, and its scores by criterion or step."""
    answer: str | None
    confidence: float | None
    reason: str
    citations: list[Quote]
    """Quotes that were found: `turn` (0 is everything before the first reply), `part`, `quote`."""
    dropped: int
    """Quotes that were not found."""
    error_message: str | None
    tokens_in: int
    tokens_out: int
    cost: float | None
    created_at: datetime


class GraderExchange(Response):
    """One request of a try with its replies."""

    messages: list[dict[str, object]]
    replies: list[str]
    """The last one counts. The one before it was in another form."""
    verdict: dict[str, object]
    """Judges: the parsed verdict of this repeat."""


class TriedPattern(Response):
    """A pattern that a contrast found."""

    name: str
    description: str
    suspicion: float
    citations: list[Quote]


class TriedRollout(Response):
    """The grade of one rollout in a try."""

    rollout_id: uuid.UUID
    error: str = ""
    score: float | None = None
    spread: float | None = None
    answer: str | None = None
    confidence: float | None = None
    reason: str = ""
    citations: list[Quote] = Field(default=[])
    dropped: int = 0
    patterns: list[TriedPattern] | None = None
    exchanges: list[GraderExchange] = Field(default=[])
    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None


class TryResponse(Progress):
    """A grader tried on a few rollouts. Nothing of it is stored as a grade."""

    id: uuid.UUID
    grader_id: uuid.UUID
    grader: str
    error: str
    rollouts: list[TriedRollout]

    @classmethod
    def of_try(cls, grader: Grader, job: Job) -> "TryResponse":
        """The result so far, which the job's row holds."""
        answer: Any = answer_of(job)
        is_over, result = answer is not None, answer or {}
        rollouts = [TriedRollout.model_validate(each) for each in result.get("rollouts", ())]
        error = str(result.get("error") or "")
        return cls(
            is_finished=is_over,
            is_successful=is_over and not error and not any(each.error for each in rollouts),
            done=len(rollouts),
            message=error or f"{grader.name} is {'done' if is_over else 'grading'}",
            id=job.id,
            grader_id=grader.id,
            grader=grader.name,
            error=error,
            rollouts=rollouts,
        )


class FlaggedAnswers(Response):
    flags: int
    """Number of new flags."""
