"""Tells people what judges and questions found: a judge that does what the data demands, rollouts that were flagged."""

import uuid
from urllib.parse import urlencode

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.flags import FlagDraft
from backend.domain.graders.questions import QuestionConfiguration
from backend.domain.notifications.notices import MOST_EXAMPLES, NoticeKind
from backend.graders.tables import Asking, Question
from backend.notifications import outbox
from backend.notifications.tables import Notice
from backend.runs.tables import Run
from workers.tasks.detectors import store_flags


def warn(run_id: uuid.UUID, name: str, warning: FlagDraft) -> None:
    """Flag the run because who judges it does as it is told. People hear of it once."""
    with transaction() as session:
        run = session.get(Run, run_id)
        if run is None or not store_flags(session, run_id, [warning]):
            return
        outbox.announce(
            session,
            kind=NoticeKind.JUDGING,
            title=f"{name} does what the data demands: {run.name}",
            text=warning.sentence,
            path=f"/runs/{run_id}/flags",
            run_id=run_id,
            evidence={"detector": warning.detector, **warning.evidence},
        )


def tell_of_flags(session: Session, asking: Asking) -> None:
    """An asking is over: what it flagged since people were last told of it, with examples."""
    question, run = session.get(Question, asking.question_id), session.get(Run, asking.run_id)
    if question is None or run is None:
        return
    detector = QuestionConfiguration.model_validate(question.configuration).detector(question.name)
    flags = _new_flags(session, asking, question, detector)
    if not flags:
        return
    rollouts = "1 rollout" if len(flags) == 1 else f"{len(flags):,} rollouts"
    first = flags[0]
    outbox.announce(
        session,
        kind=NoticeKind.JUDGING,
        title=f"{question.name} flags {rollouts} of {run.name}",
        text=f"The most suspicious one: {first.sentence} They wait in the review queue.",
        path=f"/review?{urlencode({'run': str(run.id), 'detector': detector})}",
        run_id=run.id,
        evidence={
            "question": str(question.id),
            "detector": detector,
            "flagged": len(flags),
            "seen": first.sentence,
            "rollouts": [str(flag.rollout_id) for flag in flags[:MOST_EXAMPLES]],
        },
    )


def _new_flags(session: Session, asking: Asking, question: Question, detector: str) -> list[Flag]:
    """The most suspicious first."""
    told = select(func.max(Notice.created_at)).where(
        Notice.run_id == asking.run_id,
        Notice.kind == NoticeKind.JUDGING,
        Notice.evidence["question"].astext == str(question.id),
    )
    statement = (
        select(Flag)
        .where(
            Flag.run_id == asking.run_id,
            Flag.detector == detector,
            Flag.rollout_id.is_not(None),
            Flag.evidence["answered_by"].astext == question.name,
            Flag.created_at > func.coalesce(told.scalar_subquery(), asking.created_at),
        )
        .order_by(Flag.score.desc(), Flag.id)
    )
    return list(session.scalars(statement))
