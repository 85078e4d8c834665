"""What is asked of judges and questions alike."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Subquery, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, joinedload

from backend.core.queue import answer_of
from backend.core.tables import Job
from backend.domain.vocabulary import PolicyKind
from backend.errors import NotFound
from backend.graders.tables import Inquiry
from backend.policies.tables import Policy
from backend.review.tables import VerdictRecord

I = TypeVar("I", bound=Inquiry)  # noqa: E741
ASKABLE = (PolicyKind.OPENAI_API, PolicyKind.SCRIPTED)
"""They are asked by text over the network, or are scripts."""
MAX_OPINIONS = 20_000
"""Rollouts by which the agreement with people is measured."""


@dataclass(frozen=True, slots=True)
class Try(Generic[I]):
    """What was asked and said when it was tried, as the job's row holds it."""

    inquiry: I
    job: Job
    answer: dict[str, Any] | None
    """None while it is asked."""

    @property
    def is_over(self) -> bool:
        return self.answer is not None


def in_use(session: Session, rows: type[I]) -> Sequence[I]:
    """All that were not deleted, by name, each with its policy."""
    statement = select(rows).where(rows.deleted_at.is_(None)).options(joinedload(rows.policy))
    return session.scalars(statement.order_by(rows.name)).all()


def get_inquiry(session: Session, rows: type[I], id: uuid.UUID) -> I:
    """With its policy."""
    found = session.scalar(select(rows).options(joinedload(rows.policy)).where(rows.id == id))
    if found is None:
        raise NotFound(f"There is no such {rows.noun}.")
    return found


def askable_policies(session: Session) -> Sequence[Policy]:
    """What can be a judge or answer."""
    statement = select(Policy).where(Policy.deleted_at.is_(None), Policy.kind.in_(ASKABLE))
    return session.scalars(statement.order_by(Policy.kind, Policy.name)).all()


def get_try(session: Session, job_name: str, inquiry: I, job_id: uuid.UUID) -> Try[I]:
    job = session.get(Job, job_id)
    if job is None or job.name != job_name or job.arguments.get(f"{inquiry.noun}_id") != str(inquiry.id):
        raise NotFound("There is no such try.")
    return Try(inquiry, job, answer_of(job))


def newest_verdicts(run_id: uuid.UUID) -> Subquery:
    """The verdict that counts, by rollout."""
    return (
        select(VerdictRecord.rollout_id, VerdictRecord.verdict)
        .where(VerdictRecord.run_id == run_id, VerdictRecord.rollout_id.is_not(None))
        .where(VerdictRecord.taken_back_at.is_(None))
        .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.rollout_id))
        .subquery()
    )
