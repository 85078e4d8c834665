"""Wake the sweep of a training run. Runs and training processes call it, so it imports neither."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import SWEEP_JOB, enqueue
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Queue
from backend.sweeps.tables import SweepTrial


def wake_sweep_of(session: Session, run_id: uuid.UUID) -> None:
    """Wake the sweep whose trial this run is, if it is one: it ended, or has a new held-out reward."""
    if sweep_id := session.scalar(select(SweepTrial.sweep_id).where(SweepTrial.run_id == run_id)):
        wake_sweep(session, sweep_id)


def wake_sweep(session: Session, sweep_id: uuid.UUID) -> None:
    """Queue the job unless one is waiting. A running one may have read the rows too early."""
    arguments = {"sweep_id": str(sweep_id)}
    is_same = Job.name == SWEEP_JOB, Job.arguments.contains(arguments)
    waiting = select(Job.id).where(Job.status == JobStatus.QUEUED, *is_same)
    if session.scalar(waiting.limit(1)) is None:
        enqueue(session, SWEEP_JOB, queue=Queue.CPU, arguments=arguments)
