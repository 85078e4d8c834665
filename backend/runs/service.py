"""The lifecycle of a run: begin, finish, stop, resume. Pages, the JSON API and the workers' jobs use it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.transfers import wake_waiting_transfers
from backend.core.events import RUNS, announce, topic_of
from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.tables import Job
from backend.detectors.scans import scan_finished_run
from backend.domain.notifications.notices import NoticeKind
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.tags import MAX_TAGS
from backend.domain.text import plain_text
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.errors import Conflict, NotAllowed, NotFound
from backend.graders.service import start_named
from backend.notifications import outbox
from backend.results.rewards import keep_rewards
from backend.runs.evaluations import enqueue_shares
from backend.runs.schemas import UpdateRun
from backend.runs.tables import Run
from backend.runs.usage import USAGE, count_usage
from backend.studies.service import wake_studies
from backend.studies.tables import StudyCheckpoint
from backend.sweeps.tables import SweepTrial
from backend.sweeps.waking import wake_sweep_of
from backend.web.audit import Requester, audit

PAUSE_REQUESTED = "pause_requested"
"""Key of a run's summary: its stop is meant as a pause."""


class RunIsOver(Conflict):
    """This run has ended; there is nothing to stop."""


class RunIsNotOver(Conflict):
    """Only a stopped, paused or failed run can be resumed."""


def update_run(session: Session, run: Run, request: UpdateRun) -> None:
    """Change a run's name, note or tags, also after it has ended."""
    request.apply_to(run)
    _announce(session, run)


def tag_runs(
    session: Session, runs: Sequence[Run], add: Sequence[str], remove: Sequence[str], *, is_pinned: bool | None = None
) -> None:
    """Add tags to runs or remove them, and pin or unpin. Nothing changes if one of the runs would have too many."""
    for run in runs:
        tags = [tag for tag in dict.fromkeys([*run.tags, *add]) if tag not in remove]
        if len(tags) > MAX_TAGS:
            raise Conflict(
                f"{run.name} would have {len(tags)} tags; at most {MAX_TAGS} are possible. Nothing was changed."
            )
        run.tags = tags
        run.is_pinned = run.is_pinned if is_pinned is None else is_pinned
    session.flush()
    announce(session, RUNS)


def archive_runs(session: Session, runs: Sequence[Run], *, is_archived: bool) -> None:
    """Archive runs, or take them out of the archive."""
    now = datetime.now(UTC)
    for run in runs:
        run.archived_at = (run.archived_at or now) if is_archived else None
    session.flush()
    announce(session, RUNS)


def begin_run(session: Session, run: Run) -> bool:
    """Start an attempt. False if the run has ended (it was stopped in the queue): do not run it then."""
    _lock(session, run)
    if run.status.is_over:
        return False
    run.status = RunStatus.RUNNING
    run.attempt += 1
    run.started_at = run.started_at or datetime.now(UTC)
    _announce(session, run)
    return True


def finish_run(
    session: Session,
    run: Run,
    status: RunStatus,
    summary: Mapping[str, object] | None = None,
    reason: str | None = None,
) -> None:
    """End a run as completed, stopped, paused or failed. Figures of earlier attempts are kept.

    Detectors then scan what an evaluation stored, and once it is complete its judges grade it. Training is scanned
    while it runs. People are notified of a failure, and of an evaluation that was paused; alarms report the pauses of
    training. Its starter is notified of its completion.
    """
    if not status.is_over:
        raise ValueError(f"{status} does not end a run")
    _lock(session, run)
    reason = plain_text(reason) if reason else None  # it may contain text of a model or an endpoint
    run.status = status
    run.summary = {**run.summary, **(summary or {}), USAGE: count_usage(session, run)}
    if run.kind is not RunKind.PLAY:
        keep_rewards(session, run)
    run.reason = reason
    run.ended_at = datetime.now(UTC)
    audit(session, None, "run.finish", "run", run.id, name=run.name, status=str(status), reason=reason)
    is_failed = status is RunStatus.FAILED and run.kind is not RunKind.PLAY
    if is_failed or (status is RunStatus.PAUSED and run.kind is RunKind.EVALUATION):
        outbox.announce(
            session,
            kind=NoticeKind.RUN_FAILED if is_failed else NoticeKind.ALARM,
            title=f"{run.name} {'failed' if is_failed else 'was paused'}",
            text=run.reason or "No reason was recorded.",
            path=f"/runs/{run.id}",
            run_id=run.id,
            evidence={"status": str(status), "attempt": run.attempt, "progress": run.progress},
        )
    if status is RunStatus.COMPLETED and run.kind in {RunKind.EVALUATION, RunKind.TRAINING} and run.created_by:
        part_of = StudyCheckpoint if run.kind is RunKind.EVALUATION else SweepTrial
        of_search = select(part_of.id).where(part_of.run_id == run.id)
        if not session.scalar(of_search.limit(1)):  # the study or sweep is what its starter waits for
            outbox.announce(
                session,
                kind=NoticeKind.RUN_FINISHED,
                title=f"{run.name} is complete",
                text=f"The {run.kind} that you started has finished.",
                path=f"/runs/{run.id}",
                run_id=run.id,
                person_id=run.created_by,
                for_destinations=True,
            )
    _announce(session, run)
    _wake_waiting(session, run)
    scan_finished_run(session, run)
    if run.kind is RunKind.EVALUATION and status is RunStatus.COMPLETED:
        start_named(session, run, run.configuration.get("judge_ids", ()))


def request_stop(session: Session, actor: Requester, run: Run, *, is_pause: bool = False) -> None:
    """Request a running run to stop; a queued one stops at once. An evaluation cancels its current rollouts.

    `is_pause`: training ends as paused, not as stopped.
    """
    _check_role(actor, run)
    _lock(session, run)
    if run.status.is_over:
        raise RunIsOver(f"This run is {run.status} already; there is nothing to stop.")
    run.stop_requested_at = run.stop_requested_at or datetime.now(UTC)
    if run.status is RunStatus.QUEUED:
        run.status = RunStatus.STOPPED
        run.reason = "Stopped before it began."
        run.ended_at = datetime.now(UTC)
        _wake_waiting(session, run)
    elif is_pause:
        run.summary = {**run.summary, PAUSE_REQUESTED: True}
    audit(session, actor, "run.pause" if is_pause else "run.stop", "run", run.id, name=run.name)
    _announce(session, run)


def resume_run(session: Session, actor: Requester, run: Run) -> Job:
    """Queue a run again with the job it had. It continues from its rows and plays failed rollouts again."""
    _check_role(actor, run)
    _lock(session, run)
    if not run.can_resume:
        raise RunIsNotOver(
            f"This run is {run.status}. You can resume a stopped, paused or failed run, and an evaluation with failed "
            "rollouts."
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
    audit(session, actor, "run.resume", "run", run.id, name=run.name)
    _announce(session, run)
    return job


def _lock(session: Session, run: Run) -> None:
    """Refresh and lock the run. Rollouts can still be written.

    Refreshes only its columns: a full refresh would drop the rows that were loaded with it.
    """
    session.refresh(run, Run.__mapper__.column_attrs.keys(), with_for_update={"of": Run, "key_share": True})
    if run.deletion_id is not None:
        raise NotFound("Someone deleted this run in the meantime.")


def _wake_waiting(session: Session, run: Run) -> None:
    """Wake what waits for a run that has ended: studies and transfer reports, or the sweep of a training run."""
    if run.kind is RunKind.EVALUATION:
        wake_studies(session, run.id)
        wake_waiting_transfers(session, run.id)
    elif run.kind is RunKind.TRAINING:
        wake_sweep_of(session, run.id)


def _check_role(actor: Requester, run: Run) -> None:
    needed = Role.TRAINER if run.kind is RunKind.TRAINING else Role.AUTHOR
    if not actor.role.includes(needed):
        raise NotAllowed(f"Stopping and resuming this run needs the role {needed}.")


def _announce(session: Session, run: Run) -> None:
    session.flush()
    announce(session, topic_of("run", run.id), RUNS)
