"""Flags that answers raise: as they come, where the question says so, or afterwards by hand."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, run_topic
from backend.detectors.tables import Flag
from backend.domain.graders.questions import QuestionConfiguration, QuestionKind
from backend.domain.ids import new_id
from backend.domain.vocabulary import JudgementStatus, Severity
from backend.graders.tables import Question, QuestionAnswer
from backend.review.queue import place
from backend.rollouts.tables import Rollout

MAX_SHOWN = 300
"""Characters of a reason in a flag's sentence."""
SOURCES = {
    QuestionKind.QUESTION: "a question in plain words, answered by a policy with quotes",
    QuestionKind.MONITOR: "monitoring of reasoning, arXiv:2503.11926",
    QuestionKind.CONTRAST: "contrast of rollouts of one task; Patronus TRACE, 2026",
}


def raise_flags(
    session: Session,
    run_id: uuid.UUID,
    question: Question,
    *,
    answers: Sequence[str] = (),
    rollout_ids: Iterable[uuid.UUID] | None = None,
) -> int:
    """Of the stored answers (to these rollouts): how many new flags there are.

    Without a quote that stands in the rollout there is no evidence, and so no flag. The same rollout is not flagged
    twice by one question.
    """
    asked = QuestionConfiguration.model_validate(question.configuration)
    wanted = _wanted(asked, answers)
    if wanted is None:
        return 0
    statement = (
        select(QuestionAnswer, Rollout.training_step)
        .join(Rollout, Rollout.id == QuestionAnswer.rollout_id)
        .where(
            QuestionAnswer.run_id == run_id,
            QuestionAnswer.question_id == question.id,
            QuestionAnswer.status == JudgementStatus.COMPLETED,
            func.jsonb_array_length(QuestionAnswer.citations) > 0,
            wanted,
        )
    )
    if rollout_ids is not None:
        statement = statement.where(QuestionAnswer.rollout_id.in_(list(rollout_ids)))
    rows = [_row(question, asked, answer, step) for answer, step in session.execute(statement)]
    if not rows:
        return 0
    new = insert(Flag).on_conflict_do_nothing(index_elements=["run_id", "detector", "key"]).returning(Flag.rollout_id)
    flagged = {each for each in session.scalars(new, rows) if each is not None}
    place(session, flagged)
    if flagged:
        announce(session, run_topic(run_id), REVIEW)
    return len(flagged)


def evidence_of(
    question_name: str, asked: QuestionConfiguration, quotes: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """What such a flag shows: the quotes, marked where they stand."""
    spans = [{**each, "turn": each["turn"] - 1} for each in quotes]
    titles = {QuestionKind.MONITOR: "States that it means to exploit the task", QuestionKind.CONTRAST: "Earns by it"}
    return {
        "title": titles.get(asked.kind, asked.text),
        "source": SOURCES[asked.kind],
        "spans": spans,
        "answered_by": question_name,
    }


def _wanted(asked: QuestionConfiguration, answers: Sequence[str]) -> Any:
    if asked.kind is QuestionKind.MONITOR:
        return QuestionAnswer.value >= asked.flags_from
    chosen = list(answers or asked.flags)
    return QuestionAnswer.answer.in_(chosen) if chosen else None


def _row(question: Question, asked: QuestionConfiguration, answer: QuestionAnswer, step: int | None) -> dict[str, Any]:
    is_own = asked.kind is QuestionKind.QUESTION
    told = f"“{asked.text}”: {answer.answer}" if is_own else f"Suspicion {answer.answer}"
    facts = {"answer": answer.answer, "dropped_quotes": answer.dropped}
    return {
        "id": new_id(),
        "run_id": answer.run_id,
        "rollout_id": answer.rollout_id,
        "detector": asked.detector(question.name),
        "key": str(answer.rollout_id) if is_own else f"{answer.rollout_id}/{question.id}",
        "severity": Severity.WARNING,
        "score": answer.confidence,
        "sentence": f"{told}. {answer.reason[:MAX_SHOWN]}",
        "evidence": evidence_of(question.name, asked, answer.citations) | facts,
        "training_step": step,
        "cluster": answer.answer if is_own else None,
    }
