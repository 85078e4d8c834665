"""What a draft's reward would give stored episodes: asked for beside a rollout, answered in the job's row."""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import answer_of, enqueue
from backend.core.tables import Job
from backend.domain.vocabulary import Queue, RolloutStatus
from backend.environments.queries import get_draft
from backend.environments.tables import Environment, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.errors import Conflict, NotFound
from backend.rollouts.tables import Group, Rollout, Task

DRAFT_JOB = "rescoring.draft"


class DraftHasProblems(Conflict):
    """The draft has problems; mend them first, then its reward can be tried on stored episodes."""


class NothingToScore(Conflict):
    """Only a completed episode can be scored again."""


@dataclass(frozen=True, slots=True)
class DraftScore:
    """A question and, as soon as it is there, its answer."""

    job: Job
    environment: Environment
    rollout_id: uuid.UUID
    answer: dict[str, Any] | None
    is_stale: bool
    """The draft was saved since."""

    @property
    def is_over(self) -> bool:
        return self.answer is not None


def score_by_draft(session: Session, rollout_id: uuid.UUID) -> Job:
    """Have the draft of the rollout's environment score it, its cluster and the history. Nothing is stored of them."""
    environment, status = _environment_of(session, rollout_id)
    if status is not RolloutStatus.COMPLETED:
        raise NothingToScore
    if validate_package(get_draft(session, environment).files, environment.name).problems:
        raise DraftHasProblems
    arguments = {"rollout_id": str(rollout_id), "environment_id": str(environment.id)}
    return enqueue(session, DRAFT_JOB, queue=Queue.CPU, arguments=arguments)


def draft_score(session: Session, job_id: uuid.UUID) -> DraftScore:
    job = session.get(Job, job_id)
    if job is None or job.name != DRAFT_JOB:
        raise NotFound("There is no such score by a draft.")
    environment = session.get_one(Environment, uuid.UUID(job.arguments["environment_id"]))
    answer = answer_of(job)
    revision = (answer or {}).get("draft_revision")
    is_stale = revision is not None and revision != get_draft(session, environment).revision
    return DraftScore(job, environment, uuid.UUID(job.arguments["rollout_id"]), answer, is_stale)


def _environment_of(session: Session, rollout_id: uuid.UUID) -> tuple[Environment, RolloutStatus]:
    statement = (
        select(Environment, Rollout.status)
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Task, Task.version_id == EnvironmentVersion.id)
        .join(Group, Group.task_id == Task.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .where(Rollout.id == rollout_id)
    )
    found = session.execute(statement).one_or_none()
    if found is None:
        raise NotFound("There is no such rollout.")
    return found[0], found[1]
