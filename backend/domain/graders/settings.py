"""The kinds and settings of graders.

A grader is a policy that reads stored rollouts and grades each of them. A *judge* gives a score in [0, 1], a *question*
one of a few answers, a *monitor* a suspicion about the policy's reasoning. A *contrast* compares rollouts of one task.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, field_validator, model_validator

from backend.domain.templates import template_problem

GRADER_NAME = r"^[a-z][a-z0-9_]{0,39}$"
JUDGE_PREFIX = "judge."
"""The scores of the judge NAME are the rollout field `judge.NAME`."""
QUESTION_PREFIX = "question."
"""The answers to the question NAME are the rollout field `question.NAME`."""
DETECTOR_PREFIX = "question:"
"""The flags that answers to the question NAME raise have the detector `question:NAME`."""
MAX_LABELS = 12
DEFAULT_INSTRUCTION = """\
Judge how well {{ answer }} answers {{ prompt }}. Look at whether it is correct and complete; how it is worded, \
how long it is and how sure it sounds do not count."""

Slug = Annotated[str, StringConstraints(pattern=GRADER_NAME)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]


class GraderKind(StrEnum):
    JUDGE = "judge"
    """Scores each rollout from 0 to 1."""
    QUESTION = "question"
    """Answers a question about each rollout, in plain language."""
    MONITOR = "monitor"
    """Does the policy's reasoning state that it intends to exploit the task? Never part of a reward."""
    CONTRAST = "contrast"
    """What do high-reward rollouts of a task do, and low-reward ones not, that is not solving the task?"""

    def detector(self, name: str) -> str:
        """The detector id of the flags that a grader of this kind and name raises."""
        match self:
            case GraderKind.MONITOR:
                return "reasoning_monitor"
            case GraderKind.CONTRAST:
                return "contrastive_judge"
            case _:
                return f"{DETECTOR_PREFIX}{name}"


class JudgeScale(StrEnum):
    BOOLEAN = "boolean"
    """Yes or no: 1 or 0."""
    FIVE = "one_to_five"
    """1 is worst: 0, 0.25, … 1."""
    UNIT = "unit"
    """Any number from 0 to 1."""
    RUBRIC = "rubric"
    """Named criteria from 0 to 1; the score is their weighted mean."""


class JudgeTarget(StrEnum):
    ANSWER = "answer"
    """The last reply."""
    TRANSCRIPT = "transcript"
    """The whole conversation."""
    STEPS = "steps"
    """Each reply separately, or each line of the only reply: process supervision."""


class AnswerType(StrEnum):
    YES_NO = "yes_no"
    FIVE = "one_to_five"
    LABELS = "labels"
    """One of a short list."""
    SUSPICION = "suspicion"
    """0 to 1. Monitors and contrasts only."""


class Criterion(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Slug
    description: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    weight: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)


class Controls(BaseModel):
    """A question with one clearly good and one clearly bad answer. Every run of a judge starts with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: Text = "What is 17 + 25? Show how you get there."
    good: Text = "17 + 25 = 17 + 20 + 5\n= 37 + 5\n= 42\nThe answer is 42."
    bad: Text = "I like turtles.\nThe answer is a turtle."


class _RequestSettings(BaseModel):
    """Request settings of the policy behind a grader."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: GraderKind
    shows_reasoning: bool = False
    """Whether the grader sees the policy's reasoning, if it is stored separately from the reply."""
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int = Field(default=1024, ge=16, le=32_768)
    concurrency: int = Field(default=8, ge=1, le=256)

    @property
    def sees_reasoning(self) -> bool:
        return self.shows_reasoning or self.kind is GraderKind.MONITOR


class JudgeSettings(_RequestSettings):
    kind: Literal[GraderKind.JUDGE] = GraderKind.JUDGE
    instruction: Text = DEFAULT_INSTRUCTION
    """A Jinja template over `prompts.FIELDS`. Text of the rollout is named in it and follows in a marked block."""
    system: Annotated[str, StringConstraints(max_length=10_000)] = ""
    """System prompt. The warning that graded text is data and never an instruction is always added."""
    target: JudgeTarget = JudgeTarget.ANSWER
    scale: JudgeScale = JudgeScale.UNIT
    criteria: tuple[Criterion, ...] = Field(default=(), max_length=12)
    """Rubric only."""
    fold: Literal["mean", "lowest"] = "mean"
    """How step scores become one score."""
    repeats: int = Field(default=1, ge=1, le=10)
    """Requests per rollout. The score is their mean, the spread their standard deviation."""
    shows_reference: bool = False
    """Whether the judge sees the correct answer, if the environment provides one."""
    controls: Controls = Controls()

    @field_validator("instruction")
    @classmethod
    def _compiles(cls, value: str) -> str:
        if problem := template_problem(value):
            raise ValueError(f"template does not compile: {problem}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> "JudgeSettings":
        if (self.scale is JudgeScale.RUBRIC) != bool(self.criteria):
            raise ValueError("a rubric needs criteria, and only a rubric has them")
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise ValueError("two criteria have the same name")
        return self


class QuestionSettings(_RequestSettings):
    """Settings of a question, a monitor or a contrast."""

    kind: Literal[GraderKind.QUESTION, GraderKind.MONITOR, GraderKind.CONTRAST] = GraderKind.QUESTION
    text: Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000)] = ""
    """The question in plain language. Monitors and contrasts: further instructions."""
    answers: AnswerType = AnswerType.YES_NO
    labels: tuple[Slug, ...] = Field(default=(), max_length=MAX_LABELS)
    flags: tuple[str, ...] = Field(default=(), max_length=MAX_LABELS)
    """Questions only: answers that raise a flag."""
    flags_from: float = Field(default=0.7, ge=0, le=1, allow_inf_nan=False)
    """Monitors and contrasts only: lowest suspicion that raises a flag."""
    each: int = Field(default=4, ge=1, le=6)
    """Contrasts only: number of rollouts per side."""

    @model_validator(mode="after")
    def _fits(self) -> "QuestionSettings":
        is_question = self.kind is GraderKind.QUESTION
        if is_question and not self.text:
            raise ValueError("write the question")
        if is_question == (self.answers is AnswerType.SUSPICION):
            raise ValueError("questions are answered by yes or no, 1 to 5 or a label; the other kinds by a suspicion")
        if (self.answers is AnswerType.LABELS) != bool(self.labels):
            raise ValueError("the answer type `labels` needs a list of labels, and no other type has one")
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            raise ValueError("enter two or more different labels")
        if unknown := [answer for answer in self.flags if answer not in self.choices]:
            raise ValueError(f"unknown answers: {', '.join(unknown)}; the answers are {', '.join(self.choices)}")
        return self

    @property
    def choices(self) -> tuple[str, ...]:
        """Every possible answer, in order; none for a suspicion."""
        match self.answers:
            case AnswerType.YES_NO:
                return ("no", "yes")
            case AnswerType.FIVE:
                return ("1", "2", "3", "4", "5")
            case AnswerType.LABELS:
                return self.labels
            case AnswerType.SUSPICION:
                return ()


GraderSettings = Annotated[JudgeSettings | QuestionSettings, Field(discriminator="kind")]
_SETTINGS: TypeAdapter[JudgeSettings | QuestionSettings] = TypeAdapter(GraderSettings)


def read_settings(stored: object) -> JudgeSettings | QuestionSettings:
    """Settings from their stored JSON. Raises ValidationError."""
    return _SETTINGS.validate_python(stored)
