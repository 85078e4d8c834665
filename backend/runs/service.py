"""The life of a run: start, begin, finish, stop, resume. Pages, the JSON API and the workers' jobs come through it."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import RUNS, announce, run_topic
from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.tables import Job
from backend.detectors.scans import scan_finished_run
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.text import plain_text
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.errors import Conflict, NotAllowed
from backend.graders.service import start_named
from backend.runs.endings import tell_of_ending
from backend.runs.notes import Asker, note
from backend.runs.starting import enqueue_shares, start_evaluation
from backend.runs.tables import Run
from backend.studies.service import wake_studies

PAUSE_REQUESTED = "pause_requested"
"""In a run's summary: its stop is meant as a pause."""

__all__ = [
    "PAUSE_REQUESTED",
    "begin_run",
    "finish_run",
    "request_stop",
    "resume_run",
    "start_evaluation",
]


class RunIsOver(Conflict):
    """This run is over; there is nothing to stop."""


class RunIsNotOver(Conflict):
    """Only a stopped, paused or failed run can be resumed."""


def begin_run(session: Session, run: Run) -> bool:
    """A worker takes the run up. False when it is over already (stopped in the queue): leave it alone then."""
    _lock(session, run)
    if run.status.is_over:
        return False
    run.status = RunStatus.RUNNING
    run.attempt += 1
    run.started_at = run.started_at or datetime.now(UTC)
    _changed(session, run)
    return True


def finish_run(
    session: Session, run: Run, status: RunStatus, summary: dict[str, Any] | None = None, reason: str | None = None
) -> None:
    """A worker lays the run down: completed, stopped, paused or failed. Figures already there are kept.

    What an evaluation stored is looked at by the detectors next, and once it is complete by the judges that it named;
    training is watched by the detectors while it goes on.
    """
    if not status.is_over:
        raise ValueError(f"{status} does not end a run")
    _lock(session, run)
    reason = plain_text(reason) if reason else None  # it may hold what a model or an endpoint said
    run.status = status
    run.summary = {**run.summary, **(summary or {})}
    run.reason = reason
    run.ended_at = datetime.now(UTC)
    note(session, None, "run.finish", "run", run.id, name=run.name, status=str(status), reason=reason)
    tell_of_ending(session, run)
    _changed(session, run)
    if run.kind is RunKind.EVALUATION:
        wake_studies(session, run.id)
    scan_finished_run(session, run)
    if run.kind is RunKind.EVALUATION and status is RunStatus.COMPLETED:
        start_named(session, run, run.configuration.get("judge_ids", ()))


def request_stop(session: Session, actor: Asker, run: Run, *, is_pause: bool = False) -> None:
    """Ask a running run to stop; a queued one stops at once. An evaluation's rollouts in flight become cancelled.

    `is_pause`: training then ends as paused, not as stopped.
    """
    _may_steer(actor, run)
    _lock(session, run)
    if run.status.is_over:
        raise RunIsOver(f"This run is {run.status} already; there is nothing to stop.")
    run.stop_requested_at = run.stop_requested_at or datetime.now(UTC)
    if run.status is RunStatus.QUEUED:
        run.status = RunStatus.STOPPED
        run.reason = "Stopped before it began."
        run.ended_at = datetime.now(UTC)
    elif is_pause:
        run.summary = {**run.summary, PAUSE_REQUESTED: True}
    note(session, actor, "run.pause" if is_pause else "run.stop", "run", run.id, name=run.name)
    _changed(session, run)


def resume_run(session: Session, actor: Asker, run: Run) -> Job:
    """Queue a run again with the job it had; it goes on where its rows stand, and failed rollouts are played again."""
    _may_steer(actor, run)
    _lock(session, run)
    if not run.can_resume:
        raise RunIsNotOver(
            f"This run is {run.status}; what can be resumed is a stopped, paused or failed run,"
            " and an evaluation of which rollouts failed."
        )
    own = select(Job).where(Job.run_id == run.id, Job.name != JUDGING_JOB)
    last = session.scalars(own.order_by(Job.id.desc()).limit(1)).first()
    if last is None:
        raise RunIsNotOver("This run was not started as a job, so there is nothing to resume.")
    run.status = RunStatus.QUEUED
    run.stop_requested_at = run.reason = run.ended_at = None
    run.summary = {name: value for name, value in run.summary.items() if name != PAUSE_REQUESTED}
    if run.kind is RunKind.EVALUATION:
        workers = EvaluationPlan.model_validate(run.configuration).workers
        job = enqueue_shares(session, run, last.name, last.queue, workers)
    else:
        job = enqueue(session, last.name, queue=last.queue, run_id=run.id, arguments=last.arguments)
    note(session, actor, "run.resume", "run", run.id, name=run.name)
    _changed(session, run)
    return job


def _lock(session: Session, run: Run) -> None:
    """Read the run as it is now and keep others from changing it. Rollouts may still be written beside it.

    Only its columns: a whole refresh would drop the rows that were loaded with it.
    """
    session.refresh(run, Run.__mapper__.column_attrs.keys(), with_for_update={"of": Run, "key_share": True})


def _may_steer(actor: Asker, run: Run) -> None:
    """Evaluations are an author's work, training a trainer's."""
    needed = Role.TRAINER if run.kind is RunKind.TRAINING else Role.AUTHOR
    if not actor.role.includes(needed):
        raise NotAllowed(f"Stopping and resuming this run needs the role {needed}.")


def _changed(session: Session, run: Run) -> None:
    session.flush()
    announce(session, run_topic(run.id), RUNS)
