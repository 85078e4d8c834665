"""Flags that the answers of graders raise, while they come in or later by hand."""

import uuid
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, topic_of
from backend.detectors.tables import Flag
from backend.domain.graders.settings import GraderKind, QuestionSettings
from backend.domain.ids import new_id
from backend.domain.vocabulary import GradeStatus, Severity
from backend.graders.tables import Grade, Grader
from backend.review.queue import place
from backend.rollouts.tables import Rollout

MAX_REASON = 300
"""Characters of a reason in a flag's sentence."""
SOURCES = {
    GraderKind.QUESTION: "a question in plain language, answered by a policy with quotes",
    GraderKind.MONITOR: "monitoring of reasoning, arXiv:2503.11926",
    GraderKind.CONTRAST: "contrast of rollouts of one task; Patronus TRACE, 2026",
}
_TITLES = {
    GraderKind.MONITOR: "States an intention to exploit the task",
    GraderKind.CONTRAST: "Pattern of high-reward rollouts",
}


def raise_flags(
    session: Session,
    run_id: uuid.UUID,
    grader: Grader,
    *,
    answers: Sequence[str] = (),
    rollout_ids: Iterable[uuid.UUID] | None = None,
) -> int:
    """Flag stored answers (to these rollouts) and return the number of new flags.

    An answer without a quote that was found is no evidence and raises no flag. A grader flags a rollout only once.
    """
    settings = QuestionSettings.model_validate(grader.settings)
    is_question = settings.kind is GraderKind.QUESTION
    chosen = list(answers or settings.flags)
    if is_question and not chosen:
        return 0
    statement = (
        select(Grade, Rollout.training_step)
        .join(Rollout, Rollout.id == Grade.rollout_id)
        .where(
            Grade.run_id == run_id,
            Grade.grader_id == grader.id,
            Grade.status == GradeStatus.COMPLETED,
            func.jsonb_array_length(Grade.citations) > 0,
            Grade.answer.in_(chosen) if is_question else Grade.score >= settings.flags_from,
        )
    )
    if rollout_ids is not None:
        statement = statement.where(Grade.rollout_id.in_(list(rollout_ids)))
    rows = []
    for grade, step in session.execute(statement):
        claim = f"“{settings.text}”: {grade.answer}" if is_question else f"Suspicion {grade.answer}"
        facts = {"answer": grade.answer, "dropped_quotes": grade.dropped}
        rows.append(
            {
                "id": new_id(),
                "run_id": grade.run_id,
                "rollout_id": grade.rollout_id,
                "detector": settings.kind.detector(grader.name),
                "key": str(grade.rollout_id) if is_question else f"{grade.rollout_id}/{grader.id}",
                "severity": Severity.WARNING,
                "score": grade.confidence,
                "sentence": f"{claim}. {grade.reason[:MAX_REASON]}",
                "evidence": flag_evidence(grader.name, settings, grade.citations) | facts,
                "training_step": step,
                "cluster": grade.answer if is_question else None,
            }
        )
    if not rows:
        return 0
    new = insert(Flag).on_conflict_do_nothing(index_elements=["run_id", "detector", "key"]).returning(Flag.rollout_id)
    flagged = {each for each in session.scalars(new, rows) if each is not None}
    place(session, flagged)
    if flagged:
        announce(session, topic_of("run", run_id), REVIEW)
    return len(flagged)


def flag_evidence(
    grader_name: str, settings: QuestionSettings, quotes: Iterable[Mapping[str, object]]
) -> dict[str, object]:
    """The evidence of a flag: its quotes with their positions. Turns of evidence start at 0."""
    return {
        "title": _TITLES.get(settings.kind, settings.text),
        "source": SOURCES[settings.kind],
        "spans": [{**quote, "turn": int(str(quote["turn"])) - 1} for quote in quotes],
        "answered_by": grader_name,
    }
