"""What the front page and the settings show."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.tables import Job
from backend.domain.vocabulary import UNDER_WAY, JobStatus, Queue, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run

_WITH_NAMES = (joinedload(Run.version).joinedload(EnvironmentVersion.environment), joinedload(Run.policy))


@dataclass(frozen=True, slots=True)
class Stock:
    """How much there is of everything: decides what a newcomer is told to do next."""

    environments: int
    policies: int
    evaluations: int
    trainings: int

    @property
    def is_fresh(self) -> bool:
        return self.evaluations == 0 and self.trainings == 0


def stock(session: Session) -> Stock:
    def runs(kind: RunKind) -> int:
        return session.scalar(select(func.count()).select_from(Run).where(Run.kind == kind)) or 0

    environments = select(func.count()).select_from(Environment).where(Environment.archived_at.is_(None))
    policies = select(func.count()).select_from(Policy).where(Policy.deleted_at.is_(None))
    return Stock(
        session.scalar(environments) or 0,
        session.scalar(policies) or 0,
        runs(RunKind.EVALUATION),
        runs(RunKind.TRAINING),
    )


def unfinished_runs(session: Session, limit: int = 20) -> Sequence[Run]:
    """Running before queued, the newest first."""
    statement = select(Run).where(Run.status.in_(UNDER_WAY), Run.kind != RunKind.PLAY)
    order = (Run.status == RunStatus.QUEUED, Run.created_at.desc())
    return session.scalars(statement.options(*_WITH_NAMES).order_by(*order).limit(limit)).all()


def newest_over(session: Session, kind: RunKind, limit: int = 6) -> Sequence[Run]:
    statement = select(Run).where(Run.kind == kind, Run.status.not_in(UNDER_WAY)).options(*_WITH_NAMES)
    return session.scalars(statement.order_by(Run.created_at.desc()).limit(limit)).all()


def waiting_jobs(session: Session) -> dict[Queue, int]:
    statement = select(Job.queue, func.count().label("waiting")).where(Job.status == JobStatus.QUEUED)
    statement = statement.group_by(Job.queue)
    return {row.queue: row.waiting for row in session.execute(statement)}
