"""Scans of stored runs with all detectors: requested by a person or at the end of a run, with their progress."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, topic_of
from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.tables import Job
from backend.detectors.schemas import DetectorScan, StartScan
from backend.domain.vocabulary import (
    OF_EVALUATION,
    OF_STEPS,
    JobStatus,
    Phase,
    Queue,
    RolloutStatus,
    RunKind,
    RunStatus,
)
from backend.errors import Conflict
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

EARLY = "early"
"""Key of the job's arguments: the evaluation is still running. Only whole batches are scanned, and only by detectors of
rollouts, so that the scan at its end finds the same."""
PROGRESS = "progress"
"""Key of the job's arguments: {done, total, phase, flags, over, note}."""
THRESHOLDS = "thresholds"
"""Key of the job's arguments: those of this scan, as text."""
COPIES = (RunKind.RESCORE, RunKind.REPLAY)
"""Runs that hold another one's rollouts with other rewards."""
PHASES: Mapping[RunKind, tuple[Phase, ...]] = {
    RunKind.TRAINING: OF_STEPS,
    **dict.fromkeys((RunKind.EVALUATION, *COPIES), OF_EVALUATION),
}
"""Rollouts that are scanned, by kind of run."""
_OTHERS = {
    RunKind.CHECK: "Checks are played by policies that cheat on purpose, so their rollouts are not scanned.",
    RunKind.PLAY: "Hand plays have a single episode by a person, so there is nothing to compare it with.",
}
"""Why other kinds of runs are not scanned."""


class NothingToScan(Conflict):
    """This run has no completed rollouts to scan."""


def _scan_of(job: Job) -> DetectorScan:
    progress: dict[str, Any] = job.arguments.get(PROGRESS) or {}
    flags: dict[str, int] = progress.get("flags") or {}
    is_done = job.status is JobStatus.DONE or bool(progress.get("over"))
    has_failed = job.status is JobStatus.FAILED
    return DetectorScan.from_row(
        job,
        status=JobStatus.DONE if is_done else job.status,
        is_finished=is_done or has_failed,
        is_successful=is_done,
        altered=int(job.arguments.get("altered") or 0),
        runs=job.arguments.get("runs"),
        note=progress.get("note") or None,
        done=int(progress.get("done") or 0),
        total=int(progress.get("total") or 0),
        message=str(progress.get("phase") or "waiting for a worker"),
        new_flags=sum(flags.values()) if is_done else None,
        by_detector=flags,
        thresholds=list(job.arguments.get(THRESHOLDS) or ()),
        error=job.error if has_failed else None,
        is_early=bool(job.arguments.get(EARLY)),
        asked_at=job.created_at,
    )


def newest_scan(session: Session, run_id: uuid.UUID) -> DetectorScan | None:
    statement = select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB)
    found = session.scalars(statement.order_by(Job.id.desc()).limit(1)).first()
    return _scan_of(found) if found else None


def start_scan(session: Session, actor: Actor, run: Run, request: StartScan) -> DetectorScan:
    """Queue a scan of everything that the run stored, or return the one in progress."""
    if run.kind not in PHASES:
        raise NothingToScan(_OTHERS[run.kind])
    if not _has_completed(session, run):
        raise NothingToScan
    session.refresh(run, ["status"], with_for_update={"of": Run, "key_share": True})
    known = newest_scan(session, run.id)
    if known and not known.is_finished and not known.is_early:
        return known
    arguments = request.model_dump(mode="json")
    job = enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run.id, arguments=arguments)
    audit(session, actor, "run.detect", "run", run.id, name=run.name, **arguments)
    announce(session, topic_of("run", run.id))
    return _scan_of(job)


def scan_finished_run(session: Session, run: Run) -> None:
    """Queue a scan when a run has ended: of an evaluation however it ended, and again of a run whose rollouts another
    version has re-scored, because there is a second verifier now."""
    target: uuid.UUID | None = None
    if run.kind is RunKind.EVALUATION and _has_completed(session, run):
        target = run.id
    elif run.kind in COPIES and run.status is RunStatus.COMPLETED and run.source_run_id:
        source = session.get(Run, run.source_run_id)
        if source is not None and source.version_id != run.version_id and source.kind in PHASES:
            target = source.id
    if target is None:
        return
    # A queued scan will read everything. One that has started may not, and one with its own thresholds differs.
    as_set = func.coalesce(func.jsonb_array_length(Job.arguments[THRESHOLDS]), 0) == 0
    if job := _waiting(session, target, as_set):
        job.arguments = {name: value for name, value in job.arguments.items() if name != EARLY}
    else:
        enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=target)


def scan_early(session: Session, run_id: uuid.UUID) -> None:
    """Scan what an evaluation has stored so far, unless a scan is queued."""
    if _waiting(session, run_id) is None:
        enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run_id, arguments={EARLY: True})


def _waiting(session: Session, run_id: uuid.UUID, *which: ColumnElement[bool]) -> Job | None:
    waiting = select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB, Job.status == JobStatus.QUEUED, *which)
    return session.scalars(waiting.limit(1).with_for_update(skip_locked=True)).first()


def keep_progress(session: Session, job_id: uuid.UUID, run_id: uuid.UUID, progress: dict[str, Any]) -> None:
    job = session.get(Job, job_id, with_for_update=True)
    if job is not None:
        job.arguments = {**job.arguments, PROGRESS: progress}
        announce(session, topic_of("run", run_id), REVIEW)


def _has_completed(session: Session, run: Run) -> bool:
    statement = select(Rollout.id).where(
        Rollout.run_id == run.id, Rollout.phase.in_(PHASES[run.kind]), Rollout.status == RolloutStatus.COMPLETED
    )
    return session.scalar(statement.limit(1)) is not None
