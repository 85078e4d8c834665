"""Judges: what is refused of them; letting one look at a run, stopping it, trying it on one rollout.

Free of the web, because a run's end starts judges too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, judges_topic
from backend.core.queue import ASK_JOB, JUDGE_JOB, enqueue
from backend.core.tables import Job
from backend.domain.graders.judging_record import JudgingRecord
from backend.domain.vocabulary import Queue, RunStatus
from backend.errors import Conflict
from backend.graders.judges.queries import RECORDS, record_of
from backend.graders.service import Rules
from backend.graders.tables import Judge, Judgement
from backend.runs.tables import Run
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor


class JudgeNameIsTaken(Conflict):
    """There is a judge of this name already."""


class JudgeIsDeleted(Conflict):
    """This judge was deleted."""


class JudgeHasJudged(Conflict):
    """A judge that has judged is not changed: its scores would mean two things. Copy it and change the copy."""


class NothingToStop(Conflict):
    """This judge is not at work on this run."""


def has_judged(session: Session, judge: Judge) -> bool:
    return session.scalar(select(Judgement.id).where(Judgement.judge_id == judge.id).limit(1)) is not None


JUDGES = Rules(
    rows=Judge,
    work="be a judge",
    name_is_taken=JudgeNameIsTaken,
    is_deleted=JudgeIsDeleted,
    was_used=JudgeHasJudged,
    is_used=has_judged,
    blamed=lambda _: "criteria",
)


def start_judging(session: Session, actor: Actor | None, run: Run, judge: Judge, where: str = "") -> Job:
    """Queue it. Rollouts that it has judged are kept; one that is at work on the run already is given back."""
    JUDGES.refuse_useless(session, judge)
    _lock(session, run)
    known = record_of(run, judge.id)
    if known and not known.status.is_over and (job := session.get(Job, uuid.UUID(known.job_id))):
        return job
    arguments = {"run_id": str(run.id), "judge_id": str(judge.id), "where": where}
    job = enqueue(session, JUDGE_JOB, queue=Queue.CPU, arguments=arguments)
    canaries = known.canaries if known else None
    _keep(session, run, judge.id, JudgingRecord(job_id=str(job.id), where=where, canaries=canaries))
    audit(session, actor, "judge.start", "run", run.id, judge=judge.name, where=where)
    return job


def start_named(session: Session, run: Run, judge_ids: Iterable[str]) -> None:
    """Start the judges that a plan names, at its run's end. One that is gone is left out."""
    for judge_id in judge_ids:
        judge = session.get(Judge, uuid.UUID(judge_id))
        if judge is None or judge.deleted_at is not None:
            continue
        try:
            start_judging(session, None, run, judge)
        except Conflict as refused:
            _keep(session, run, judge.id, JudgingRecord(job_id="", status=RunStatus.FAILED, reason=refused.message))


def stop_judging(session: Session, actor: Actor, run: Run, judge: Judge) -> None:
    """Ask it to stop after what is in flight; a queued one stops at once. What was judged stays."""
    _lock(session, run)
    record = record_of(run, judge.id)
    if record is None or record.status.is_over:
        raise NothingToStop(f"{judge.name} is not at work on this run.")
    record.stop_requested = True
    if record.status is RunStatus.QUEUED:
        record.status, record.reason = RunStatus.STOPPED, "Stopped before it began."
    _keep(session, run, judge.id, record)
    audit(session, actor, "judge.stop", "run", run.id, judge=judge.name)


def ask_judge(session: Session, actor: Actor, judge: Judge, rollout_id: uuid.UUID) -> Job:
    """Try it on one rollout: the job's row will hold what was asked and answered."""
    job = JUDGES.begin_try(session, judge, ASK_JOB, {"rollout_id": str(rollout_id)})
    audit(session, actor, "judge.ask", "judge", judge.id, name=judge.name, rollout=str(rollout_id))
    return job


def change_record(
    session: Session, run: Run, judge_id: uuid.UUID, change: Callable[[JudgingRecord], None]
) -> JudgingRecord | None:
    """Change the record under the run's lock; None when it is gone."""
    _lock(session, run)
    record = record_of(run, judge_id)
    if record is not None:
        change(record)
        _keep(session, run, judge_id, record)
    return record


def _lock(session: Session, run: Run) -> None:
    session.refresh(run, ["summary"], with_for_update={"of": Run, "key_share": True})


def _keep(session: Session, run: Run, judge_id: uuid.UUID, record: JudgingRecord) -> None:
    records = {**run.summary.get(RECORDS, {}), str(judge_id): record.model_dump(mode="json")}
    run.summary = {**run.summary, RECORDS: records}
    session.flush()
    announce(session, judges_topic(run.id))
