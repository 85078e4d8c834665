"""A model judge: what it is told to look at, on which scale, and how its reply becomes a score in [0, 1].

A reply that is no verdict is a `JudgeError`, never a zero.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from backend.domain.errors import JudgeError
from backend.domain.templates import template_problem
from backend.domain.text import plain_text

JUDGE_NAME = r"^[a-z][a-z0-9_]{0,39}$"
"""Names the column `judge.<name>`."""
MAX_REASON = 4000
"""Characters of a reason that are kept."""
MAX_STEPS = 200

DEFAULT_INSTRUCTION = """\
Judge how well {{ answer }} answers {{ prompt }}. Look at whether it is correct and complete; how it is worded, \
how long it is and how sure it sounds do not count."""

Slug = Annotated[str, StringConstraints(pattern=JUDGE_NAME)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]


class Scale(StrEnum):
    BOOLEAN = "boolean"
    """Yes or no: 1 or 0."""
    FIVE = "one_to_five"
    """1 is worst: 0, 0.25, … 1."""
    UNIT = "unit"
    """Any number from 0 to 1."""
    RUBRIC = "rubric"
    """Each named criterion from 0 to 1, then their weighted mean."""


class Target(StrEnum):
    ANSWER = "answer"
    """The last reply."""
    TRANSCRIPT = "transcript"
    """The whole conversation."""
    STEPS = "steps"
    """Each reply by itself, or each line of the only reply: for process supervision."""


class Criterion(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Slug
    description: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
    weight: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)


class Controls(BaseModel):
    """A question with an answer that is clearly good and one that is clearly bad: what every judging begins with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: Text = "What is 17 + 25? Show how you get there."
    good: Text = "17 + 25 = 17 + 20 + 5\n= 37 + 5\n= 42\nThe answer is 42."
    bad: Text = "I like turtles.\nThe answer is a turtle."


class JudgeConfiguration(BaseModel):
    """How one judge is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instruction: Text = DEFAULT_INSTRUCTION
    """Jinja over `domain.judge_prompts.FIELDS`. What a model wrote is named in it and stands in a marked block."""
    system: Annotated[str, StringConstraints(max_length=10_000)] = ""
    """Who the judge is; what it must know about data and orders in it is always added."""
    target: Target = Target.ANSWER
    scale: Scale = Scale.UNIT
    criteria: tuple[Criterion, ...] = Field(default=(), max_length=12)
    """Of a rubric."""
    fold: Literal["mean", "lowest"] = "mean"
    """How the scores of steps become one: a chain of reasoning is as good as its lowest."""
    repeats: int = Field(default=1, ge=1, le=10)
    """How often each rollout is asked about; the score is the mean, the spread their standard deviation."""
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int = Field(default=1024, ge=16, le=32_768)
    concurrency: int = Field(default=8, ge=1, le=256)
    shows_reasoning: bool = False
    """Does the judge see what the policy thought, where that is told apart from the answer?"""
    shows_reference: bool = False
    """Does it see the right answer, where the environment gives one to those who judge?"""
    controls: Controls = Controls()

    @field_validator("instruction")
    @classmethod
    def _compiles(cls, value: str) -> str:
        if problem := template_problem(value):
            raise ValueError(f"template does not compile: {problem}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> "JudgeConfiguration":
        if (self.scale is Scale.RUBRIC) != bool(self.criteria):
            raise ValueError("a rubric needs criteria, and only a rubric has them")
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise ValueError("two criteria have the same name")
        return self


@dataclass(frozen=True, slots=True)
class StepScore:
    step: int
    """From 1 on."""
    score: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer of a judge, understood."""

    score: float
    """In [0, 1]."""
    reason: str
    criteria: dict[str, float] = field(default_factory=dict)
    steps: list[StepScore] = field(default_factory=list)


def verdict_schema(judge: JudgeConfiguration, steps: int | None = None) -> dict[str, Any]:
    """JSON schema of a verdict. The reason comes first, so that a model thinks before it scores."""
    if judge.target is not Target.STEPS:
        return object_schema({"reason": {"type": "string"}, **_score(judge)})
    counted = {} if steps is None else {"minItems": steps, "maxItems": steps}
    step = object_schema({"step": {"type": "integer"}, "reason": {"type": "string"}, **_score(judge)})
    return object_schema({"reason": {"type": "string"}, "steps": {"type": "array", "items": step, **counted}})


def sendable(schema: Any) -> Any:
    """The schema without what some endpoints refuse in it: bounds are checked here afterwards."""
    if isinstance(schema, dict):
        dropped = {"minimum", "maximum", "minItems", "maxItems"}
        return {name: sendable(part) for name, part in schema.items() if name not in dropped}
    return [sendable(part) for part in schema] if isinstance(schema, list) else schema


def response_format(judge: JudgeConfiguration) -> dict[str, Any]:
    """What an endpoint that keeps to schemas is told."""
    return json_format("verdict", verdict_schema(judge))


def json_format(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as `response_format`."""
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": sendable(schema)}}


def read_verdict(judge: JudgeConfiguration, reply: str, steps: int | None = None) -> Verdict:
    """The verdict in a reply. Raises JudgeError with what is wrong, in words for the judge."""
    found = fitting_json(_validator(judge, steps), reply)
    reason = plain_text(found["reason"])[:MAX_REASON]
    if judge.target is not Target.STEPS:
        return Verdict(_value(judge, found), reason, _criteria(judge, found))
    scores = [_step(judge, item) for item in found["steps"]]
    if [each.step for each in scores] != list(range(1, len(scores) + 1)):
        raise JudgeError("steps: number them 1, 2, 3, … in order")
    if not scores:
        raise JudgeError("steps: there is none")
    values = [each.score for each in scores]
    return Verdict(min(values) if judge.fold == "lowest" else statistics.fmean(values), reason, steps=scores)


def fitting_json(validator: Draft202012Validator, reply: str) -> Any:
    """What a reply says, where it fits the schema. Raises JudgeError with what is wrong, in words for the judge."""
    found = json_in(reply)
    problem = next(iter(validator.iter_errors(found)), None)
    if problem is not None:
        where = "/".join(str(part) for part in problem.absolute_path) or "the reply"
        raise JudgeError(f"{where}: {problem.message[:300]}")
    return found


@dataclass(frozen=True, slots=True)
class Agreed:
    """Several verdicts on one thing, folded."""

    score: float
    spread: float | None
    """Standard deviation; None for a single one."""


def fold_verdicts(verdicts: Sequence[Verdict]) -> Agreed:
    scores = [verdict.score for verdict in verdicts]
    return Agreed(statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else None)


def _score(judge: JudgeConfiguration) -> dict[str, Any]:
    unit = {"type": "number", "minimum": 0, "maximum": 1}
    match judge.scale:
        case Scale.BOOLEAN:
            return {"verdict": {"type": "boolean"}}
        case Scale.FIVE:
            return {"score": {"type": "integer", "enum": [1, 2, 3, 4, 5]}}
        case Scale.UNIT:
            return {"score": unit}
        case Scale.RUBRIC:
            return {"criteria": object_schema({criterion.name: unit for criterion in judge.criteria})}


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with these properties, all of them and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@lru_cache(maxsize=256)
def _validator(judge: JudgeConfiguration, steps: int | None) -> Draft202012Validator:
    return Draft202012Validator(verdict_schema(judge, steps))


def _value(judge: JudgeConfiguration, found: Mapping[str, Any]) -> float:
    match judge.scale:
        case Scale.BOOLEAN:
            return float(found["verdict"])
        case Scale.FIVE:
            return (float(found["score"]) - 1) / 4
        case Scale.UNIT:
            return float(found["score"])
        case Scale.RUBRIC:
            whole = sum(criterion.weight for criterion in judge.criteria)
            return sum(c.weight * float(found["criteria"][c.name]) for c in judge.criteria) / whole


def _criteria(judge: JudgeConfiguration, found: Mapping[str, Any]) -> dict[str, float]:
    return {criterion.name: float(found["criteria"][criterion.name]) for criterion in judge.criteria}


def _step(judge: JudgeConfiguration, found: Mapping[str, Any]) -> StepScore:
    return StepScore(found["step"], _value(judge, found), plain_text(found["reason"])[:MAX_REASON])


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""NaN would pass every bound."""
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_MAX_READ = 200_000


def json_in(reply: str) -> Any:
    """The reply as JSON: all of it, its last fenced block, or what stands from its last `{` that begins an object.

    Thinking before the verdict is no fault; several verdicts are told apart by taking the last.
    """
    text = reply.strip()[-_MAX_READ:]
    for candidate in (text, *(block.strip() for block in reversed(_FENCED.findall(text)))):
        try:
            return _DECODER.decode(candidate)
        except (ValueError, RecursionError):
            continue
    return _last_object(text)


def _last_object(text: str) -> Any:
    """The last object that is not inside of another one."""
    found, position = None, text.find("{")
    for _ in range(1000):
        if position < 0:
            break
        try:
            found, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        position = text.find("{", end)
    if not isinstance(found, dict):
        raise JudgeError("there is no JSON object in the reply")
    return found
