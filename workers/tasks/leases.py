"""Leases of jobs: which worker runs a job, for how long, and what follows from its end.

A worker without what a job needs leaves it to others, and the wait is shown to the people who wait. Postgres's clock
decides, never Redis.
"""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.events import RUNS, announce, topic_of
from backend.core.queue import ARTIFACT_STORE, STUDY_JOB, send_wake_up
from backend.core.session import after_commit, transaction
from backend.core.tables import Job, Worker
from backend.domain.ids import new_id
from backend.domain.runs.capabilities import Capabilities, OnlineWorker, Requirement
from backend.domain.studies.study import StudyKind
from backend.domain.text import plain_text
from backend.domain.training import requirements
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import UNDER_WAY, JobStatus, RunStatus
from backend.runs.service import finish_run
from backend.runs.tables import Run
from backend.studies.tables import Study, StudyCheckpoint
from backend.training.tables import Preflight
from backend.training.workers import offers
from workers.tasks.registry import BODIES, JobContext, find_give_up

LEASE = timedelta(seconds=15)
BEAT_SECONDS = 5.0
PATIENCE = timedelta(minutes=3)
"""A job waits this long for a capable worker: one may be restarting, or may not have probed its machine yet."""
WAITING_SINCE = "nobody_since"
"""Key of a job's arguments: since when no worker online can run it."""

logger = structlog.get_logger(__name__)


def claim(job_id: uuid.UUID, worker: str) -> tuple[Job, str] | None:
    """Lease a queued job and count the attempt. None if it is leased, has ended or is unknown."""
    owner = f"{worker}/{new_id()}"
    with transaction() as session:
        job = session.scalars(
            select(Job).where(Job.id == job_id, Job.status == JobStatus.QUEUED).with_for_update(skip_locked=True)
        ).one_or_none()
        if job is None:
            return None
        job.status = JobStatus.LEASED
        job.attempts += 1
        job.lease_owner = owner
        session.execute(update(Job).where(Job.id == job.id).values(lease_until=func.now() + LEASE))
        return job, owner


def renew(job_id: uuid.UUID, owner: str) -> bool:
    """False if another worker has the lease: stop at once and write nothing more."""
    with transaction() as session:
        renewed = session.execute(
            update(Job)
            .where(Job.id == job_id, Job.lease_owner == owner, Job.status == JobStatus.LEASED)
            .values(lease_until=func.now() + LEASE)
            .returning(Job.id)
        ).one_or_none()
    return renewed is not None


def complete(job_id: uuid.UUID, owner: str) -> None:
    with transaction() as session:
        if job := _leased(session, job_id, owner):
            release(session, job, JobStatus.DONE)


def hand_back(job_id: uuid.UUID, owner: str) -> None:
    """The worker ends, not the job: another worker can take it at once, and the attempt does not count."""
    with transaction() as session:
        if job := _leased(session, job_id, owner):
            job.attempts -= 1
            release(session, job, JobStatus.QUEUED)
            after_commit(session, partial(send_wake_up, job.id, job.queue))


def fail(job_id: uuid.UUID, owner: str, error: str, *, is_final: bool = False) -> None:
    """Queue another attempt after a pause, unless all attempts are used or another would be useless."""
    with transaction() as session:
        job = _leased(session, job_id, owner)
        if job is None:
            return
        if is_final or job.attempts >= job.max_attempts:
            give_up(session, job, error)
        else:
            job.error = plain_text(error)
            release(session, job, JobStatus.QUEUED)


def release(session: Session, job: Job, status: JobStatus) -> None:
    """End the lease: the job waits again (QUEUED), or it has ended."""
    job.status = status
    job.lease_owner = job.lease_until = None
    moment = "sent_at" if status is JobStatus.QUEUED else "ended_at"
    session.execute(update(Job).where(Job.id == job.id).values({moment: func.now()}))


def give_up(session: Session, job: Job, reason: str) -> None:
    """The job failed for good: its run, or whatever it was for, must not stay `running` forever."""
    reason = plain_text(reason)
    logger.error("job given up", job=job.name, job_id=str(job.id), attempts=job.attempts, reason=reason)
    job.error = reason
    release(session, job, JobStatus.FAILED)

    def attempt(follow_up: Callable[[], object]) -> bool:
        """An error in what follows is logged and undone: it must not bring the job back."""
        try:
            with session.begin_nested():
                follow_up()
        except Exception:
            logger.exception("could not record what follows from a failed job", job=job.name, job_id=str(job.id))
            return False
        return True

    if callback := find_give_up(job.name):
        context = JobContext(job.id, job.run_id, dict(job.arguments), job.attempts)
        attempt(lambda: callback(session, context, reason))
    entry = BODIES.get(job.name)
    run = session.get(Run, job.run_id) if job.run_id and (entry is None or entry.owns_run) else None
    if run is None or run.status.is_over:
        return
    if not attempt(partial(finish_run, session, run, RunStatus.FAILED, reason=reason)):
        # then at least do not show it as running: no notice, no follow-up jobs
        changes = {"status": RunStatus.FAILED, "reason": reason, "ended_at": func.now()}
        under_way = update(Run).where(Run.id == job.run_id, Run.status.in_(UNDER_WAY))
        attempt(lambda: session.execute(under_way.values(changes)))


def _leased(session: Session, job_id: uuid.UUID, owner: str) -> Job | None:
    return session.scalars(
        select(Job).where(Job.id == job_id, Job.lease_owner == owner, Job.status == JobStatus.LEASED).with_for_update()
    ).one_or_none()


def is_left_to_others(job_id: uuid.UUID, worker: str) -> bool:
    """Whether this worker lacks what the job needs. The job then stays queued, and the sweeper sends its next wake-up.

    A worker that has not reported yet takes any job.
    """
    with transaction() as session:
        row = session.get(Worker, worker)
        queued = select(Job).where(Job.id == job_id, Job.status == JobStatus.QUEUED)
        job = session.scalars(queued.with_for_update(skip_locked=True)).one_or_none() if row else None
        if row is None or job is None:
            return False
        needed = _requirements(session, job)
        this = OnlineWorker(row.name, tuple(row.queues), Capabilities.of(row.capabilities))
        missing = [each.words for each in needed if not each.is_met(this)]
        others = requirements.able(needed, offers(session), job.queue) if missing else []
        if (not missing or others) and WAITING_SINCE in job.arguments:
            job.arguments = {name: value for name, value in job.arguments.items() if name != WAITING_SINCE}
        if not missing:
            return False
        session.execute(update(Job).where(Job.id == job.id).values(sent_at=func.now()))
        if others:
            logger.info("job left to another worker", job=job.name, job_id=str(job.id), missing=missing, able=others)
            lacks = " and no ".join(missing)
            _show_phase(session, job, f"waiting for {', '.join(others[:3])}: {worker} has no {lacks}")
            return True
        words = " and ".join(each.words for each in needed if not each.is_waited_for or each.words in missing)
        now = datetime.now(UTC)
        since = datetime.fromisoformat(job.arguments.get(WAITING_SINCE) or now.isoformat())
        job.arguments = {**job.arguments, WAITING_SINCE: since.isoformat()}
        required = [each for each in needed if not each.is_waited_for]
        is_hopeless = len(required) == len(needed) or not requirements.able(required, offers(session), job.queue)
        if now - since >= PATIENCE and is_hopeless:
            give_up(session, job, f"No worker that answers has what this needs: {words}.")
        else:
            _show_phase(session, job, f"waiting for a worker with {words}: none answers")
        return True


def _requirements(session: Session, job: Job) -> list[Requirement]:
    needed: list[Requirement] = []
    if store := job.arguments.get(ARTIFACT_STORE):
        words = "access to this installation's artifacts"
        needed.append(Requirement(words, lambda offer: offer.can.reads(store), is_waited_for=True))
    if job.name == "training.run" and job.run_id:
        configuration = session.get_one(Run, job.run_id).configuration
        return [*requirements.of_training(TrainingConfiguration.of_run(configuration)), *needed]
    if job.name == "training.preflight":
        if preflight := session.get(Preflight, uuid.UUID(job.arguments["preflight_id"])):
            needed = [*requirements.of_training(TrainingConfiguration.of_run(preflight.configuration)), *needed]
        return needed
    if job.name == "exports.run":
        with_checkpoint = [joinedload(Export.checkpoint)]
        if export := session.get(Export, uuid.UUID(job.arguments["export_id"]), options=with_checkpoint):
            needed = [*requirements.of_weights(export.checkpoint.adapter, export.form), *needed]
        return needed
    if job.name == "evaluations.run" and job.run_id:
        weights = select(Checkpoint).join(Run, Run.checkpoint_id == Checkpoint.id).where(Run.id == job.run_id)
    elif job.name == STUDY_JOB:  # one worker cuts the replies of both sides of an effort study
        of_study = Study.id == uuid.UUID(job.arguments["study_id"]), Study.kind == StudyKind.EFFORT
        studied = select(Checkpoint).join(StudyCheckpoint, StudyCheckpoint.checkpoint_id == Checkpoint.id)
        weights = studied.join(Study, Study.id == StudyCheckpoint.study_id).where(*of_study)
    else:
        return needed
    by_words = {each.words: each for row in session.scalars(weights) for each in requirements.of_weights(row.adapter)}
    return [*by_words.values(), *needed]


def _show_phase(session: Session, job: Job, phase: str) -> None:
    """Show it on the run, preflight, export or study."""
    if "preflight_id" in job.arguments:
        preflight = session.get_one(Preflight, uuid.UUID(job.arguments["preflight_id"]))
        preflight.progress = {**preflight.progress, "phase": phase}
        announce(session, topic_of("preflight", preflight.id))
    elif "export_id" in job.arguments:
        export = session.get_one(Export, uuid.UUID(job.arguments["export_id"]))
        export.progress = {**export.progress, "phase": phase}
        announce(session, f"export:{export.id}")
    elif job.name == STUDY_JOB:
        study = session.get_one(Study, uuid.UUID(job.arguments["study_id"]))
        study.reason = phase
        announce(session, topic_of("run", study.run_id))
    elif job.run_id:
        run = session.get_one(Run, job.run_id)
        if run.status is RunStatus.QUEUED or job.name == "training.run":  # else other jobs may be running it
            run.progress = {**run.progress, "phase": phase}
            announce(session, RUNS, topic_of("run", run.id))
