"""Testing the connection of a policy: a worker looks, because workers make the real calls; the page follows."""

import uuid
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.policies.connections import ConnectionReport
from backend.domain.vocabulary import JobStatus, PolicyKind, Queue
from backend.errors import Conflict
from backend.policies.service import PolicyIsDeleted
from backend.policies.tables import Policy
from backend.runs.notes import Asker, note

TEST_JOB = "policies.test"


class NothingToTest(Conflict):
    """Only a model endpoint has a connection to test."""


@dataclass(frozen=True, slots=True)
class ConnectionTest:
    """The newest test of a policy."""

    id: uuid.UUID
    asked_at: datetime
    report: ConnectionReport | None
    """None while it is looked at."""
    is_stale: bool
    """The policy was changed since."""


def start_test(session: Session, actor: Asker, policy: Policy) -> Job:
    """Queue a look at the endpoint; one that is under way is given back instead of a second."""
    if policy.deleted_at is not None:
        raise PolicyIsDeleted
    if policy.kind is not PolicyKind.OPENAI_API:
        raise NothingToTest(f"{policy.name} has no connection to test: only a model endpoint has.")
    newest = _newest(session, policy)
    if newest is not None and newest.status in {JobStatus.QUEUED, JobStatus.LEASED}:
        return newest
    job = enqueue(session, TEST_JOB, queue=Queue.CPU, arguments={"policy_id": str(policy.id)})
    job.max_attempts = 2
    note(session, actor, "policy.test", "policy", policy.id, name=policy.name)
    return job


def newest_test(session: Session, policy: Policy) -> ConnectionTest | None:
    job = _newest(session, policy)
    if job is None:
        return None
    report = _report(job)
    is_stale = report is not None and bool(report.base_url) and not report.is_about(policy.configuration)
    return ConnectionTest(job.id, job.created_at, report, is_stale)


def _newest(session: Session, policy: Policy) -> Job | None:
    statement = select(Job).where(Job.name == TEST_JOB, Job.arguments["policy_id"].astext == str(policy.id))
    return session.scalars(statement.order_by(Job.id.desc()).limit(1)).first()


def _report(job: Job) -> ConnectionReport | None:
    if "answer" not in job.arguments:
        return None
    try:
        return ConnectionReport.model_validate(job.arguments["answer"])
    except ValidationError:
        return ConnectionReport(base_url="", model="")
