"""The JSON that a grader's model must reply with, and how a reply becomes a verdict, an answer or patterns.

A reply in another form is a `JudgeError`, never a zero or a "no".
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from backend.domain.errors import JudgeError
from backend.domain.graders.evidence import Citation
from backend.domain.graders.settings import (
    AnswerType,
    GraderKind,
    JudgeScale,
    JudgeSettings,
    JudgeTarget,
    QuestionSettings,
)
from backend.domain.text import plain_text, refuse_constant

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

MAX_REASON = 4000
"""Characters of a reason that are stored."""
MAX_CITATIONS = 12
MAX_QUOTE = 2000

JsonSchema = dict[str, Any]
_UNIT: JsonSchema = {"type": "number", "minimum": 0, "maximum": 1}
_STRING: JsonSchema = {"type": "string"}


@dataclass(frozen=True, slots=True)
class StepScore:
    step: int
    """Starts at 1."""
    score: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    score: float
    """In [0, 1]."""
    reason: str
    criteria: dict[str, float] = field(default_factory=dict)
    steps: list[StepScore] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """One parsed reply to a question. Its citations are not checked yet."""

    answer: str
    """One of the choices; for a suspicion, the number."""
    value: float
    """For sorting: yes is 1; a label's position in its list."""
    confidence: float
    reason: str
    citations: list[Citation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Something that high-reward rollouts do and that is not solving the task."""

    name: str
    description: str
    suspicion: float
    quotes: list[Citation]


def verdict_schema(judge: JudgeSettings, steps: int | None = None) -> JsonSchema:
    """JSON schema of a verdict. The reason comes first, so that the model reasons before it scores."""
    match judge.scale:
        case JudgeScale.BOOLEAN:
            score: JsonSchema = {"verdict": {"type": "boolean"}}
        case JudgeScale.FIVE:
            score = {"score": {"type": "integer", "enum": [1, 2, 3, 4, 5]}}
        case JudgeScale.UNIT:
            score = {"score": _UNIT}
        case JudgeScale.RUBRIC:
            score = {"criteria": _object({criterion.name: _UNIT for criterion in judge.criteria})}
    if judge.target is not JudgeTarget.STEPS:
        return _object({"reason": _STRING, **score})
    count = {} if steps is None else {"minItems": steps, "maxItems": steps}
    step = _object({"step": {"type": "integer"}, "reason": _STRING, **score})
    return _object({"reason": _STRING, "steps": {"type": "array", "items": step, **count}})


def answer_schema(question: QuestionSettings, letters: Sequence[str] = ()) -> JsonSchema:
    """JSON schema of an answer. Reason and quotes come first, so that the model looks before it answers.

    `letters`: contrasts only, the names of the rollouts in the request.
    """
    quote = {"turn": {"type": "integer"}, "quote": _STRING}
    if question.kind is GraderKind.CONTRAST:
        quotes = _list(_object({"rollout": {"type": "string", "enum": list(letters)}, **quote}))
        pattern = {"name": _STRING, "description": _STRING, "quotes": quotes, "suspicion": _UNIT}
        return _object({"reason": _STRING, "patterns": _list(_object(pattern))})
    match question.answers:
        case AnswerType.YES_NO:
            answer: JsonSchema = {"type": "boolean"}
        case AnswerType.FIVE:
            answer = {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        case AnswerType.LABELS:
            answer = {"type": "string", "enum": list(question.labels)}
        case AnswerType.SUSPICION:
            answer = _UNIT
    properties = {"reason": _STRING, "citations": _list(_object(quote)), "answer": answer}
    if question.answers is not AnswerType.SUSPICION:
        properties["confidence"] = _UNIT
    return _object(properties)


def response_format(settings: JudgeSettings | QuestionSettings, letters: Sequence[str] = ()) -> JsonSchema:
    """The schema as `response_format` for endpoints that enforce one."""
    if isinstance(settings, JudgeSettings):
        name, schema = "verdict", verdict_schema(settings)
    else:
        name, schema = "answer", answer_schema(settings, letters)
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": sendable(schema)}}


def sendable(schema: Any) -> Any:
    """The schema without bounds, which some endpoints refuse. They are checked in the reply."""
    if isinstance(schema, dict):
        bounds = {"minimum", "maximum", "minItems", "maxItems"}
        return {name: sendable(part) for name, part in schema.items() if name not in bounds}
    return [sendable(part) for part in schema] if isinstance(schema, list) else schema


def read_verdict(judge: JudgeSettings, reply: str, steps: int | None = None) -> JudgeVerdict:
    """Parse a judge's reply. Raises JudgeError, whose message is sent back to the judge."""

    def score_of(part: Mapping[str, Any]) -> float:
        match judge.scale:
            case JudgeScale.BOOLEAN:
                return float(part["verdict"])
            case JudgeScale.FIVE:
                return (float(part["score"]) - 1) / 4
            case JudgeScale.UNIT:
                return float(part["score"])
            case JudgeScale.RUBRIC:
                weight = sum(criterion.weight for criterion in judge.criteria)
                return sum(each.weight * float(part["criteria"][each.name]) for each in judge.criteria) / weight

    parsed = _fitting_json(_validator(judge, steps), reply)
    reason = plain_text(parsed["reason"])[:MAX_REASON]
    if judge.target is not JudgeTarget.STEPS:
        criteria = {criterion.name: float(parsed["criteria"][criterion.name]) for criterion in judge.criteria}
        return JudgeVerdict(score_of(parsed), reason, criteria)
    scores = [
        StepScore(each["step"], score_of(each), plain_text(each["reason"])[:MAX_REASON]) for each in parsed["steps"]
    ]
    if [each.step for each in scores] != list(range(1, len(scores) + 1)):
        raise JudgeError("steps: number them 1, 2, 3, … in order")
    if not scores:
        raise JudgeError("steps: the list is empty")
    values = [each.score for each in scores]
    return JudgeVerdict(min(values) if judge.fold == "lowest" else statistics.fmean(values), reason, steps=scores)


def fold_verdicts(verdicts: Sequence[JudgeVerdict]) -> tuple[float, float | None]:
    """Mean and standard deviation of the scores of repeats; no deviation for a single one."""
    scores = [verdict.score for verdict in verdicts]
    return statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else None


def read_answer(question: QuestionSettings, reply: str) -> ParsedAnswer:
    """Parse the answer in a reply. Raises JudgeError, whose message is sent back to the model."""
    parsed = _fitting_json(_validator(question), reply)
    given = parsed["answer"]
    match question.answers:
        case AnswerType.YES_NO:
            answer, value = ("yes", 1.0) if given else ("no", 0.0)
        case AnswerType.LABELS:
            answer, value = given, float(question.labels.index(given))
        case AnswerType.FIVE:
            answer, value = str(int(given)), float(given)
        case AnswerType.SUSPICION:
            answer, value = f"{float(given):.2f}", float(given)
    confidence = value if question.answers is AnswerType.SUSPICION else float(parsed["confidence"])
    reason = plain_text(parsed["reason"])[:MAX_REASON]
    return ParsedAnswer(answer, value, confidence, reason, list(map(_citation, parsed["citations"])))


def read_patterns(question: QuestionSettings, reply: str, letters: Sequence[str]) -> list[Pattern]:
    """Parse the patterns that a contrast found, most suspicious first. Raises JudgeError."""
    parsed = _fitting_json(_validator(question, letters=tuple(letters)), reply)
    patterns = [
        Pattern(
            plain_text(each["name"])[:80].strip() or "unnamed",
            plain_text(each["description"])[:MAX_REASON],
            float(each["suspicion"]),
            list(map(_citation, each["quotes"])),
        )
        for each in parsed["patterns"]
    ]
    return sorted(patterns, key=lambda pattern: -pattern.suspicion)


def _citation(quote: Mapping[str, Any]) -> Citation:
    return Citation(int(quote["turn"]), plain_text(quote["quote"])[:MAX_QUOTE], quote.get("rollout", ""))


def _object(properties: JsonSchema) -> JsonSchema:
    """An object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _list(item: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": item, "maxItems": MAX_CITATIONS}


@lru_cache(maxsize=512)
def _validator(
    settings: JudgeSettings | QuestionSettings, steps: int | None = None, letters: tuple[str, ...] = ()
) -> "Draft202012Validator":
    from jsonschema import Draft202012Validator  # takes long to import

    if isinstance(settings, JudgeSettings):
        return Draft202012Validator(verdict_schema(settings, steps))
    return Draft202012Validator(answer_schema(settings, letters))


def _fitting_json(validator: "Draft202012Validator", reply: str) -> Any:
    parsed = json_in(reply)
    problem = next(iter(validator.iter_errors(parsed)), None)
    if problem is not None:
        where = "/".join(str(part) for part in problem.absolute_path) or "the reply"
        raise JudgeError(f"{where}: {problem.message[:300]}")
    return parsed


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_MAX_READ = 200_000


def json_in(reply: str) -> Any:
    """The JSON in a reply: the whole reply, its last fenced block, or its last outermost object.

    Text before the object is allowed; of several objects the last counts. Raises JudgeError.
    """
    text = reply.strip()[-_MAX_READ:]
    for candidate in (text, *(block.strip() for block in reversed(_FENCED.findall(text)))):
        try:
            return _DECODER.decode(candidate)
        except (ValueError, RecursionError):
            continue
    parsed, position = None, text.find("{")
    for _ in range(1000):
        if position < 0:
            break
        try:
            parsed, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        position = text.find("{", end)
    if not isinstance(parsed, dict):
        raise JudgeError("there is no JSON object in the reply")
    return parsed
