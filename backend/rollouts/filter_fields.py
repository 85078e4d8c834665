"""What a filter may ask about the rollouts of one run: what every run has, its reward columns, metrics, judges and
questions. The reasoning monitor is no field: what one can choose rollouts by, one can train by."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.graders.settings import (
    DETECTOR_PREFIX,
    QUESTION_PREFIX,
    AnswerType,
    GraderKind,
    QuestionSettings,
)
from backend.domain.rollouts.filter_tree import Field, FieldKind
from backend.domain.training.mix import MixPart
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason, Verdict
from backend.graders.tables import Grader
from backend.rollouts.tables import Rollout
from backend.rollouts.text_search import indexed_to
from backend.runs.tables import Run

SAMPLED = 200
"""Rollouts at either end of a run that are looked at for the names of its metrics."""
GROUP_KINDS = ("mixed", "all_good", "all_bad")

_NUMBERS = {
    "reward": "weighted sum of the columns",
    "advantage": "reward minus its group's mean",
    "tokens": "tokens written by the policy",
    "tokens_in": "tokens read by the policy",
    "turns": "replies of the policy",
    "level": "difficulty of the task",
    "step": "training step",
    "task": "number of the task in its split",
    "member": "place in its group, from 0",
    "attempts": "how often it was tried",
    "seconds": "policy and environment together",
    "policy_seconds": "time at the policy",
    "environment_seconds": "time in the environment",
    "queue": "seconds waited for a place and for retries",
    "cost": "US dollars by the policy's price",
}
_CHOICES: Mapping[str, tuple[str, Iterable[str]]] = {
    "status": ("how it came out", RolloutStatus),
    "stop_reason": ("why the episode ended", StopReason),
    "error_kind": ("where a failed one broke", ErrorKind),
    "phase": ("why it was played", Phase),
    "split": ("of its task", Split),
    "verdict": ("the newest verdict on it", Verdict),
    "group": ("how the rewards of its group differ", GROUP_KINDS),
}
_OTHERS = (
    Field("truncated", FieldKind.YES_NO, "a reply was cut at its limit"),
    Field("demonstration", FieldKind.YES_NO, "marked to be learned from"),
    Field("text", FieldKind.TEXT, "somewhere in the conversation"),
    Field("error", FieldKind.TEXT, "in the message of what failed"),
)


@dataclass(frozen=True, slots=True)
class AskedField:
    """A question whose answers are a field."""

    id: uuid.UUID
    choices: tuple[str, ...]
    is_number: bool
    sees_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class FilterScope:
    """One run and the names by which its rollouts can be asked for."""

    run: Run
    fields: Mapping[str, Field]
    judges: Mapping[str, uuid.UUID]
    """By name."""
    metrics: tuple[str, ...] = ()
    indexed: int = 0
    """Number of the last rollout whose text is in the index."""
    questions: Mapping[str, AskedField] = field(default_factory=dict)
    """By name."""
    unseen: frozenset[str] = frozenset()
    """Detectors whose flags are as if they were not there."""


def scope_of(session: Session, run: Run, *, for_learning: bool = False) -> FilterScope:
    """One statement: metrics are sampled, detectors are those with flags in the run.

    For learning, what read the policy's reasoning is not there: neither the monitor's flags nor answers to questions
    nor scores of judges that were shown it. Who chooses lessons by it trains against it, and then it is hidden
    (arXiv:2503.11926).
    """
    ends = [
        select(Rollout.metrics).where(Rollout.run_id == run.id).order_by(order).limit(SAMPLED).subquery()
        for order in (Rollout.seq.asc(), Rollout.seq.desc())
    ]
    names = [select(func.jsonb_object_keys(end.c.metrics)) for end in ends]
    found = session.execute(
        select(
            func.array(names[0].union(names[1]).scalar_subquery()),
            func.array(select(Flag.detector).where(Flag.run_id == run.id).distinct().scalar_subquery()),
            _judges(for_learning=for_learning).scalar_subquery(),
            indexed_to(run),
            select(func.jsonb_object_agg(Grader.name, func.jsonb_build_array(Grader.id, Grader.settings)))
            .where(Grader.deleted_at.is_(None), Grader.kind == GraderKind.QUESTION)
            .scalar_subquery(),
        )
    ).one()
    judges = {name: uuid.UUID(id) for name, id in (found[2] or {}).items()}
    questions = {name: _asked(*stored) for name, stored in (found[4] or {}).items()}
    unseen: frozenset[str] = frozenset()
    if for_learning:
        readers = {name for name, asked in questions.items() if asked.sees_reasoning}
        unseen = frozenset({GraderKind.MONITOR.detector(""), *(f"{DETECTOR_PREFIX}{name}" for name in readers)})
        questions = {name: asked for name, asked in questions.items() if name not in readers}
    detectors = tuple(name for name in sorted(found[1]) if name not in unseen)
    named = [*_fields(run, sorted(found[0]), detectors, judges), *_answers(questions)]
    fields = {field.name: field for field in named}
    return FilterScope(run, fields, judges, tuple(sorted(found[0])), found[3], questions, unseen)


def _judges(*, for_learning: bool) -> Any:
    """Ids by name in one object."""
    found = select(func.jsonb_object_agg(Grader.name, Grader.id))
    found = found.where(Grader.deleted_at.is_(None), Grader.kind == GraderKind.JUDGE)
    if not for_learning:
        return found
    return found.where(~func.coalesce(Grader.settings["shows_reasoning"].as_boolean(), False))


def _asked(id: str, configuration: Mapping[str, Any]) -> AskedField:
    known = QuestionSettings.model_validate(configuration)
    return AskedField(uuid.UUID(id), known.choices, known.answers is AnswerType.FIVE, known.sees_reasoning)


def _answers(questions: Mapping[str, AskedField]) -> Iterator[Field]:
    for name, asked in questions.items():
        if asked.is_number:
            yield Field(f"{QUESTION_PREFIX}{name}", FieldKind.NUMBER, "answer to a question, 1 to 5")
        else:
            yield Field(f"{QUESTION_PREFIX}{name}", FieldKind.CHOICE, "answer to a question", asked.choices)


def _fields(run: Run, metrics: list[str], detectors: tuple[str, ...], judges: Iterable[str]) -> Iterator[Field]:
    """Later ones replace earlier ones of the same name: what every run has wins, `column.…` reaches the rest."""
    yield from (Field(name, FieldKind.NUMBER, "metric, without weight") for name in metrics)
    yield from (Field(name, FieldKind.NUMBER, "reward column") for name in run.columns)
    yield Field("tokens_out", FieldKind.NUMBER, "the same as tokens")
    yield from (Field(name, FieldKind.NUMBER, help) for name, help in _NUMBERS.items())
    yield from (Field(name, FieldKind.CHOICE, help, tuple(map(str, all))) for name, (help, all) in _CHOICES.items())
    if names := _environments(run):
        yield Field("environment", FieldKind.CHOICE, "in which it was played", names)
    yield Field("flag", FieldKind.WORD, "a detector's flag on it", detectors)
    yield from _OTHERS
    yield from (Field(f"column.{name}", FieldKind.NUMBER, "reward column") for name in run.columns)
    yield from (Field(f"metric.{name}", FieldKind.NUMBER, "metric, without weight") for name in metrics)
    yield from (Field(f"judge.{name}", FieldKind.NUMBER, "score of a judge, 0 to 1") for name in judges)


def _environments(run: Run) -> tuple[str, ...]:
    """Of a training run on several."""
    mix = run.configuration.get("mix")
    if not mix:
        return ()
    return tuple(sorted({run.version.environment.name, *(MixPart.parse(text).environment for text in mix)}))


def is_reserved(name: str) -> bool:
    """Does every run have a field of this name, so that a column of the same name needs `column.` in front?"""
    return name in _NUMBERS or name in _CHOICES or name in {"flag", "tokens_out", *(field.name for field in _OTHERS)}


def is_said_later(name: str) -> bool:
    """Is it what people, detectors, judges or those who answer questions add to rollouts that are stored already?"""
    return name in {"flag", "verdict", "demonstration"} or name.startswith(("judge.", QUESTION_PREFIX))
