"""What a verdict sets off: at once its fixture, a moment later the best checkpoint of a training run."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import FOLLOW_JOB, enqueue
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Queue, RunKind, Verdict
from backend.review.fixtures import fixture_of_verdict, fixture_without_verdict
from backend.runs.tables import Run

if TYPE_CHECKING:
    from backend.web.identity import Actor


def follow_verdict(
    session: Session, actor: Actor | None, run_id: uuid.UUID, rollout_id: uuid.UUID, verdict: Verdict
) -> None:
    fixture_of_verdict(session, actor, rollout_id, verdict)
    weigh_again(session, {run_id})


def follow_undo(
    session: Session, actor: Actor, run_id: uuid.UUID, rollout_id: uuid.UUID, verdict: Verdict, given_at: datetime
) -> None:
    """The verdict was taken back, and so is what it caused."""
    fixture_without_verdict(session, actor, rollout_id, verdict, given_at)
    weigh_again(session, {run_id})


def weigh_again(session: Session, run_ids: Collection[uuid.UUID]) -> None:
    """Let the best checkpoints of these runs follow the verdicts on them."""
    trained = select(Run.id).where(Run.id.in_(run_ids), Run.kind == RunKind.TRAINING)
    for run_id in session.scalars(trained).all():
        _weigh_again(session, run_id)


def _weigh_again(session: Session, run_id: uuid.UUID) -> None:
    """One waiting job is enough for any number of verdicts; one that is at work may have read too early."""
    waiting = select(Job.id).where(Job.run_id == run_id, Job.name == FOLLOW_JOB, Job.status == JobStatus.QUEUED)
    if session.scalar(waiting.limit(1)) is None:
        enqueue(session, FOLLOW_JOB, queue=Queue.CPU, run_id=run_id)
