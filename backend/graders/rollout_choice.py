"""Which rollouts of a run a judge or a question is asked about: what part it is, is said in the language of filters."""

import uuid

from sqlalchemy import Select, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from backend.domain.vocabulary import JudgementStatus, RolloutStatus
from backend.graders.tables import Judgement, QuestionAnswer
from backend.rollouts.queries import matching
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run


def completed_rollouts(session: Session, run: Run, where: str) -> Select[uuid.UUID]:
    """Their ids. Raises InvalidInput where the filter cannot be read."""
    wanted = select(Rollout.id).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
    return wanted.where(Rollout.id.in_(matching(session, run, where))) if where.strip() else wanted


def still_without(
    wanted: Select[uuid.UUID], said: type[Judgement] | type[QuestionAnswer], inquiry_id: uuid.UUID
) -> Select[uuid.UUID]:
    """Those of them without a completed judgement or answer, in their order."""
    by: InstrumentedAttribute[uuid.UUID] = Judgement.judge_id if said is Judgement else QuestionAnswer.question_id
    is_said = select(said.id).where(
        by == inquiry_id, said.rollout_id == Rollout.id, said.status == JudgementStatus.COMPLETED
    )
    return wanted.where(~is_said.exists()).order_by(Rollout.seq)


def count_of(session: Session, wanted: Select[uuid.UUID]) -> int:
    return session.scalar(select(func.count()).select_from(wanted.order_by(None).subquery())) or 0


def told_nothing(where: str) -> str:
    """Why there is none."""
    return "No completed rollout passes this." if where.strip() else "This run has no completed rollout yet."
