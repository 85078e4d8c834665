"""Questions in plain words about rollouts: how one is put, which answers it may get, how a reply becomes an answer.

Three kinds are asked by the same machinery: a question of somebody's, the reasoning monitor, and the contrast between
rollouts of the same task that earned much and little. A reply that is no answer is a `JudgeError`, never a no.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from backend.domain.graders.citations import Citation
from backend.domain.graders.judges import JUDGE_NAME, MAX_REASON, fitting_json, json_format, object_schema
from backend.domain.text import plain_text

QUESTION_PREFIX = "question."
"""A question's answers are the column `question.<name>`."""
DETECTOR_PREFIX = "question:"
"""Stands where a detector's id does, on flags that a question's answers raise."""
MAX_LABELS, MAX_CITATIONS = 12, 12
MAX_QUOTE = 2000

Label = Annotated[str, StringConstraints(pattern=JUDGE_NAME)]


class QuestionKind(StrEnum):
    QUESTION = "question"
    """Somebody's own, about each rollout."""
    MONITOR = "reasoning_monitor"
    """Does what the policy thought state that it means to exploit the task? Never part of a reward."""
    CONTRAST = "contrastive_judge"
    """What do the rollouts of a task that earned much do that is not doing the task?"""

    def detector(self, name: str) -> str:
        """Under which id the flags of such a question of this name stand."""
        return f"{DETECTOR_PREFIX}{name}" if self is QuestionKind.QUESTION else str(self)

    @property
    def is_of_rollouts(self) -> bool:
        """Is there an answer for each rollout, not for several at once?"""
        return self is not QuestionKind.CONTRAST


class AnswerType(StrEnum):
    YES_NO = "yes_no"
    FIVE = "one_to_five"
    LABELS = "labels"
    """One of a short list."""
    SUSPICION = "suspicion"
    """0 to 1; of the monitor and the contrast only."""


class QuestionConfiguration(BaseModel):
    """How one question is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: QuestionKind = QuestionKind.QUESTION
    text: Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000)] = ""
    """In plain words. Of the monitor and the contrast: what else to look for."""
    answers: AnswerType = AnswerType.YES_NO
    labels: tuple[Label, ...] = Field(default=(), max_length=MAX_LABELS)
    flags: tuple[str, ...] = Field(default=(), max_length=MAX_LABELS)
    """Which answers of a question raise a flag; none by default."""
    flags_from: float = Field(default=0.7, ge=0, le=1, allow_inf_nan=False)
    """Suspicion from which the monitor or the contrast raises a flag."""
    shows_reasoning: bool = False
    """Is what the policy thought shown, where that is told apart from the answer?"""
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int = Field(default=1024, ge=16, le=32_768)
    concurrency: int = Field(default=8, ge=1, le=256)
    each: int = Field(default=4, ge=1, le=6)
    """Of the contrast: rollouts that earned much, and as many that earned little."""

    @model_validator(mode="after")
    def _fits(self) -> "QuestionConfiguration":
        is_own = self.kind is QuestionKind.QUESTION
        if is_own and not self.text:
            raise ValueError("write the question")
        if is_own == (self.answers is AnswerType.SUSPICION):
            raise ValueError("a question is answered by yes or no, 1 to 5 or a label; the others by a suspicion")
        if (self.answers is AnswerType.LABELS) != bool(self.labels):
            raise ValueError("labels need a list, and nothing else has one")
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            raise ValueError("name two labels or more, each once")
        if unknown := [answer for answer in self.flags if answer not in self.choices]:
            raise ValueError(f"no answer is called {', '.join(unknown)}; there is {', '.join(self.choices)}")
        return self

    @property
    def choices(self) -> tuple[str, ...]:
        """Every answer there may be, in order; none for a suspicion."""
        match self.answers:
            case AnswerType.YES_NO:
                return ("no", "yes")
            case AnswerType.FIVE:
                return ("1", "2", "3", "4", "5")
            case AnswerType.LABELS:
                return self.labels
            case AnswerType.SUSPICION:
                return ()

    @property
    def is_ordered(self) -> bool:
        """Does one answer mean more of something than another?"""
        return self.answers is not AnswerType.LABELS

    @property
    def sees_reasoning(self) -> bool:
        return self.shows_reasoning or self.kind is QuestionKind.MONITOR

    def detector(self, name: str) -> str:
        """Under which id its flags stand."""
        return self.kind.detector(name)


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply, understood. Its citations are still to be looked for."""

    answer: str
    """One of the choices; of a suspicion the number."""
    value: float
    """To sort by: yes is 1; a label's place in its list."""
    confidence: float
    reason: str
    citations: list[Citation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A quote of one of several rollouts, which are named by letters."""

    rollout: str
    citation: Citation


@dataclass(frozen=True, slots=True)
class Pattern:
    """Something that rollouts which earned much do, and that is not doing the task."""

    name: str
    description: str
    suspicion: float
    suspects: list[Suspect]


def answer_schema(asked: QuestionConfiguration, names: Sequence[str] = ()) -> dict[str, Any]:
    """JSON schema of a reply. Reason and quotes come first, so that a model looks before it answers.

    `names`: of a contrast, the letters of the rollouts that it is shown.
    """
    text = {"type": "string"}
    quote = {"turn": {"type": "integer"}, "quote": text}
    if asked.kind is QuestionKind.CONTRAST:
        named = object_schema({"rollout": {"type": "string", "enum": list(names)}, **quote})
        pattern = {"name": text, "description": text, "quotes": _listed(named), "suspicion": _UNIT}
        return object_schema({"reason": text, "patterns": _listed(object_schema(pattern))})
    answer = {"reason": text, "citations": _listed(object_schema(quote)), "answer": _answer(asked)}
    if asked.answers is not AnswerType.SUSPICION:
        answer["confidence"] = _UNIT
    return object_schema(answer)


def response_format(asked: QuestionConfiguration, names: Sequence[str] = ()) -> dict[str, Any]:
    """What an endpoint that keeps to schemas is told."""
    return json_format("answer", answer_schema(asked, names))


def read_answer(asked: QuestionConfiguration, reply: str) -> Answer:
    """The answer in a reply. Raises JudgeError with what is wrong, in words for the one who was asked."""
    found = fitting_json(_validator(asked, ()), reply)
    answer, value = _understood(asked, found["answer"])
    confidence = value if asked.answers is AnswerType.SUSPICION else float(found["confidence"])
    return Answer(answer, value, confidence, _words(found["reason"]), [_citation(each) for each in found["citations"]])


def read_patterns(asked: QuestionConfiguration, reply: str, names: Sequence[str]) -> list[Pattern]:
    """What a contrast found, the most suspicious first. Raises JudgeError."""
    found = fitting_json(_validator(asked, tuple(names)), reply)
    patterns = [
        Pattern(
            _words(each["name"])[:80].strip() or "unnamed",
            _words(each["description"]),
            float(each["suspicion"]),
            [Suspect(quote["rollout"], _citation(quote)) for quote in each["quotes"]],
        )
        for each in found["patterns"]
    ]
    return sorted(patterns, key=lambda pattern: -pattern.suspicion)


_UNIT: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}


def _listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "maxItems": MAX_CITATIONS}


def _answer(asked: QuestionConfiguration) -> dict[str, Any]:
    match asked.answers:
        case AnswerType.YES_NO:
            return {"type": "boolean"}
        case AnswerType.FIVE:
            return {"type": "integer", "enum": [1, 2, 3, 4, 5]}
        case AnswerType.LABELS:
            return {"type": "string", "enum": list(asked.labels)}
        case AnswerType.SUSPICION:
            return _UNIT


def _understood(asked: QuestionConfiguration, found: Any) -> tuple[str, float]:
    match asked.answers:
        case AnswerType.YES_NO:
            return ("yes", 1.0) if found else ("no", 0.0)
        case AnswerType.LABELS:
            return found, float(asked.labels.index(found))
        case AnswerType.FIVE:
            return str(int(found)), float(found)
        case AnswerType.SUSPICION:
            return f"{float(found):.2f}", float(found)


def _citation(found: Mapping[str, Any]) -> Citation:
    return Citation(int(found["turn"]), plain_text(found["quote"])[:MAX_QUOTE])


def _words(text: str) -> str:
    return plain_text(text)[:MAX_REASON]


@lru_cache(maxsize=256)
def _validator(asked: QuestionConfiguration, names: tuple[str, ...]) -> Draft202012Validator:
    return Draft202012Validator(answer_schema(asked, names))
