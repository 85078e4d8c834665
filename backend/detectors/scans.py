"""Letting the detectors look at a stored run on demand: asked for, how far it is, how many flags are new."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, run_topic
from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.tables import Job
from backend.domain.detectors.settings import Thresholds
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
"""Key of the job's arguments: the evaluation still plays. Only whole batches are looked at, and only by detectors of
rollouts, so that the look at its end says the same of them."""
PROGRESS = "progress"
"""Key of the job's arguments: {done, total, phase, flags, over}."""
THRESHOLDS = "thresholds"
"""Key of the job's arguments: those of this look, as text."""
COPIES = (RunKind.RESCORE, RunKind.REPLAY)
"""Runs that hold another one's rollouts with other rewards."""
PHASES: Mapping[RunKind, tuple[Phase, ...]] = {
    RunKind.TRAINING: OF_STEPS,
    **dict.fromkeys((RunKind.EVALUATION, *COPIES), OF_EVALUATION),
}
"""Rollouts of these say something about a policy that could cheat."""
_OTHERS = {
    RunKind.CHECK: "The checks of a version are played by scripts that cheat on purpose: detectors would flag what the"
    " certificate is made from.",
    RunKind.PLAY: "A hand play is one person's own episode, not a policy's: there is nothing to compare it with.",
}
"""Why detectors do not look at other kinds of runs."""
MOST_ALTERED = 1000


class NothingToLookAt(Conflict):
    """Detectors look at completed rollouts; this run has none."""


class DetectionRequest(BaseModel):
    """How far the detectors go."""

    model_config = ConfigDict(extra="forbid")

    altered: int = Field(default=0, ge=0, le=MOST_ALTERED)
    """Of up to so many rollouts that succeeded, altered replies are played on an env server too."""
    thresholds: Thresholds = Field(default_factory=list)
    """Of this look, as `paid_exit.reward=0.6`; over the run's own and those of its environment."""

    @classmethod
    def of_job(cls, arguments: Mapping[str, Any]) -> DetectionRequest:
        """What a job was told, beside how far it is."""
        return cls.model_validate({name: arguments[name] for name in cls.model_fields if name in arguments})


@dataclass(frozen=True, slots=True)
class Detection:
    """One look at a run."""

    id: uuid.UUID
    status: JobStatus
    altered: int
    done: int
    total: int
    phase: str
    new_flags: int | None
    """None until it is over."""
    by_detector: Mapping[str, int] = field(default_factory=dict)
    """New flags."""
    thresholds: Sequence[str] = ()
    """That were given for this look."""
    error: str | None = None
    is_early: bool = False
    """At what an evaluation that still plays has stored."""
    asked_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status in {JobStatus.DONE, JobStatus.FAILED}

    @classmethod
    def of(cls, job: Job) -> Detection:
        progress: dict[str, Any] = job.arguments.get(PROGRESS) or {}
        flags: dict[str, int] = progress.get("flags") or {}
        is_done = job.status is JobStatus.DONE or bool(progress.get("over"))
        return cls(
            id=job.id,
            status=JobStatus.DONE if is_done else job.status,
            altered=int(job.arguments.get("altered") or 0),
            done=int(progress.get("done") or 0),
            total=int(progress.get("total") or 0),
            phase=str(progress.get("phase") or "waiting for a worker"),
            new_flags=sum(flags.values()) if is_done else None,
            by_detector=flags,
            thresholds=job.arguments.get(THRESHOLDS) or (),
            error=job.error if job.status is JobStatus.FAILED else None,
            is_early=bool(job.arguments.get(EARLY)),
            asked_at=job.created_at,
            ended_at=job.ended_at,
        )


def can_be_looked_at(run: Run) -> bool:
    return run.kind in PHASES


def newest_detection(session: Session, run_id: uuid.UUID) -> Detection | None:
    """The last look that was asked for, also by the end of an evaluation."""
    statement = select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB)
    found = session.scalars(statement.order_by(Job.id.desc()).limit(1)).first()
    return Detection.of(found) if found else None


def start_detection(session: Session, actor: Actor, run: Run, request: DetectionRequest) -> Detection:
    """Queue a look at all that the run stored. One that is under way is given back."""
    if not can_be_looked_at(run):
        raise NothingToLookAt(_OTHERS[run.kind])
    if not _has_completed(session, run):
        raise NothingToLookAt
    session.refresh(run, ["status"], with_for_update={"of": Run, "key_share": True})
    known = newest_detection(session, run.id)
    if known and not known.is_over and not known.is_early:
        return known
    arguments = request.model_dump(mode="json")
    job = enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run.id, arguments=arguments)
    audit(session, actor, "run.detect", "run", run.id, name=run.name, **arguments)
    announce(session, run_topic(run.id))
    return Detection.of(job)


def follow_run(session: Session, run: Run) -> None:
    """A run is over: what an evaluation stored is looked at, however it ended. What another version scored again is
    looked at once more, because there is a second verifier."""
    if run.kind is RunKind.EVALUATION and _has_completed(session, run):
        _look_once(session, run.id)
    elif run.kind in COPIES and run.status is RunStatus.COMPLETED and run.source_run_id:
        source = session.get(Run, run.source_run_id)
        if source is not None and source.version_id != run.version_id and can_be_looked_at(source):
            _look_once(session, source.id)


def look_early(session: Session, run_id: uuid.UUID) -> None:
    """At what an evaluation has stored so far, where no other look waits."""
    if _waiting(session, run_id) is None:
        enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run_id, arguments={EARLY: True})


def _look_once(session: Session, run_id: uuid.UUID) -> None:
    """A look that waits for a worker will see it all; one that a worker has begun may not, and one with thresholds of
    its own tells other things."""
    as_set = func.coalesce(func.jsonb_array_length(Job.arguments[THRESHOLDS]), 0) == 0
    if job := _waiting(session, run_id, as_set):
        job.arguments = {name: value for name, value in job.arguments.items() if name != EARLY}
    else:
        enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run_id)


def _waiting(session: Session, run_id: uuid.UUID, *which: ColumnElement[bool]) -> Job | None:
    waiting = select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB, Job.status == JobStatus.QUEUED, *which)
    return session.scalars(waiting.limit(1).with_for_update(skip_locked=True)).first()


def keep_progress(session: Session, job_id: uuid.UUID, run_id: uuid.UUID, progress: dict[str, Any]) -> None:
    """How far a look is, for whoever watches the run."""
    job = session.get(Job, job_id, with_for_update=True)
    if job is not None:
        job.arguments = {**job.arguments, PROGRESS: progress}
        announce(session, run_topic(run_id), REVIEW)


def _has_completed(session: Session, run: Run) -> bool:
    statement = select(Rollout.id).where(
        Rollout.run_id == run.id, Rollout.phase.in_(PHASES[run.kind]), Rollout.status == RolloutStatus.COMPLETED
    )
    return session.scalar(statement.limit(1)) is not None
