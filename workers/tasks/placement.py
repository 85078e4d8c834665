"""Which worker a job is for: one that lacks what the job needs leaves it to another, and says so where people look."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.events import RUNS, announce, preflight_topic, run_topic
from backend.core.queue import ARTIFACT_STORE, STUDY_JOB
from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.runs.capabilities import Capabilities, Offer
from backend.domain.studies.study import StudyKind
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.requirements import (
    Requirement,
    able,
    lacking,
    of_artifacts,
    of_export,
    of_training,
    of_weights,
)
from backend.domain.vocabulary import JobStatus, RunStatus
from backend.runs.tables import Run
from backend.studies.tables import Study, StudyCheckpoint
from backend.training.tables import Preflight
from backend.training.workers import offers
from workers.tasks.leases import give_up

PATIENCE = timedelta(minutes=3)
"""So long nobody may answer who could: a worker that begins anew, or has not asked its machine yet."""
SINCE = "nobody_since"
"""Argument of a job: since when no worker that answers could carry it out."""

logger = structlog.get_logger(__name__)


def is_passed_over(job_id: uuid.UUID, worker: str) -> bool:
    """Does this worker lack what the job needs? Then the job stays queued; its next wake-up is the sweeper's.

    A worker that has not reported is not asked.
    """
    with transaction() as session:
        row = session.get(Worker, worker)
        queued = select(Job).where(Job.id == job_id, Job.status == JobStatus.QUEUED)
        job = session.scalars(queued.with_for_update(skip_locked=True)).one_or_none() if row else None
        if row is None or job is None:
            return False
        needed = _requirements(session, job)
        missing = lacking(needed, Offer(row.name, tuple(row.queues), Capabilities.of(row.capabilities)))
        if missing:
            _leave(session, job, needed, missing, worker)
        else:
            _forget_since(job)
        return bool(missing)


def _requirements(session: Session, job: Job) -> list[Requirement]:
    store = job.arguments.get(ARTIFACT_STORE)
    return [*_of_machine(session, job), *([of_artifacts(store)] if store else [])]


def _of_machine(session: Session, job: Job) -> list[Requirement]:
    if job.name == "training.run" and job.run_id:
        return of_training(TrainingConfiguration.of_run(session.get_one(Run, job.run_id).configuration))
    if job.name == "training.preflight":
        preflight = session.get(Preflight, uuid.UUID(job.arguments["preflight_id"]))
        return of_training(TrainingConfiguration.of_run(preflight.configuration)) if preflight else []
    if job.name == "exports.run":
        export = session.get(Export, uuid.UUID(job.arguments["export_id"]), options=[joinedload(Export.checkpoint)])
        return of_export(export.form, export.checkpoint.adapter) if export else []
    if job.name == "evaluations.run" and job.run_id:
        statement = select(Checkpoint).join(Run, Run.checkpoint_id == Checkpoint.id).where(Run.id == job.run_id)
        checkpoint = session.scalars(statement).one_or_none()
        return of_weights(checkpoint.adapter) if checkpoint else []
    if job.name == STUDY_JOB:  # one worker cuts the replies of both sides of an effort study
        of_study = Study.id == uuid.UUID(job.arguments["study_id"]), Study.kind == StudyKind.EFFORT
        studied = select(Checkpoint).join(StudyCheckpoint, StudyCheckpoint.checkpoint_id == Checkpoint.id)
        sides = studied.join(Study, Study.id == StudyCheckpoint.study_id).where(*of_study)
        needed = {each.words: each for side in session.scalars(sides) for each in of_weights(side.adapter)}
        return list(needed.values())
    return []


def _leave(session: Session, job: Job, needed: Sequence[Requirement], missing: Sequence[str], worker: str) -> None:
    session.execute(update(Job).where(Job.id == job.id).values(sent_at=func.now()))
    wanted = " and ".join(each.words for each in needed if not each.is_waited_for or each.words in missing)
    if names := able(needed, offers(session), job.queue):
        _forget_since(job)
        logger.info("job left to another worker", job=job.name, job_id=str(job.id), missing=missing, able=names)
        _say(session, job, f"waiting for {', '.join(names[:3])}: {worker} has no {' and no '.join(missing)}")
        return
    now = datetime.now(UTC)
    since = datetime.fromisoformat(job.arguments.get(SINCE) or now.isoformat())
    job.arguments = {**job.arguments, SINCE: since.isoformat()}
    least = [each for each in needed if not each.is_waited_for]
    is_hopeless = len(least) == len(needed) or not able(least, offers(session), job.queue)
    if now - since >= PATIENCE and is_hopeless:
        give_up(session, job, f"No worker that answers has what this needs: {wanted}.")
    else:
        _say(session, job, f"waiting for a worker with {wanted}: none answers")


def _forget_since(job: Job) -> None:
    if SINCE in job.arguments:
        job.arguments = {name: value for name, value in job.arguments.items() if name != SINCE}


def _say(session: Session, job: Job, words: str) -> None:
    """On the run, the pre-flight, the export or the effort score, for those who wait."""
    if "preflight_id" in job.arguments:
        preflight = session.get_one(Preflight, uuid.UUID(job.arguments["preflight_id"]))
        preflight.progress = {**preflight.progress, "phase": words}
        announce(session, preflight_topic(preflight.id))
    elif "export_id" in job.arguments:
        export = session.get_one(Export, uuid.UUID(job.arguments["export_id"]))
        export.progress = {**export.progress, "phase": words}
        announce(session, f"export:{export.id}")
    elif job.name == STUDY_JOB:
        study = session.get_one(Study, uuid.UUID(job.arguments["study_id"]))
        study.reason = words
        announce(session, run_topic(study.run_id))
    elif job.run_id:
        run = session.get_one(Run, job.run_id)
        if run.status is RunStatus.QUEUED or job.name == "training.run":  # else other jobs may be at work on it
            run.progress = {**run.progress, "phase": words}
            announce(session, RUNS, run_topic(run.id))
