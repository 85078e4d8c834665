"""Judges: adding, changing, deleting; letting one look at a run, stopping it, trying it on one rollout.

Free of the web, because a run's end starts judges too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Job, Judge, Judgement, Policy, Run
from backend.domain.ids import new_id
from backend.domain.judges import JudgeConfiguration
from backend.domain.judging_record import JudgingRecord
from backend.domain.vocabulary import PolicyKind, Queue, RunStatus
from backend.errors import Conflict, InvalidInput
from backend.events import announce, judges_topic
from backend.judging.judge_queries import RECORDS, record_of
from backend.queue import ASK_JOB, JUDGE_JOB, enqueue
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.judging.judge_forms import JudgeRequest
    from backend.web.identity import Actor

JUDGING_KINDS = (PolicyKind.OPENAI_API, PolicyKind.SCRIPTED)


class JudgeNameIsTaken(Conflict):
    """There is a judge of this name already."""


class JudgeIsDeleted(Conflict):
    """This judge was deleted."""


class JudgeHasJudged(Conflict):
    """A judge that has judged is not changed: its scores would mean two things. Copy it and change the copy."""


class NothingToStop(Conflict):
    """This judge is not at work on this run."""


def add_judge(session: Session, actor: Actor, request: JudgeRequest) -> Judge:
    judge = Judge(id=new_id(), created_by=actor.person_id)
    _fill(session, judge, request)
    session.add(judge)
    session.flush()
    audit(session, actor, "judge.add", "judge", judge.id, name=judge.name)
    return judge


def change_judge(session: Session, actor: Actor, judge: Judge, request: JudgeRequest) -> Judge:
    """Only while it has not judged."""
    _refuse_deleted(judge)
    if has_judged(session, judge):
        raise JudgeHasJudged
    _fill(session, judge, request)
    session.flush()
    audit(session, actor, "judge.change", "judge", judge.id, name=judge.name)
    return judge


def has_judged(session: Session, judge: Judge) -> bool:
    return session.scalar(select(Judgement.id).where(Judgement.judge_id == judge.id).limit(1)) is not None


def delete_judge(session: Session, actor: Actor, judge: Judge) -> None:
    """Take a judge out of all choices. Its judgements stay with their rollouts; its name is free again."""
    _refuse_deleted(judge)
    audit(session, actor, "judge.delete", "judge", judge.id, name=judge.name)
    judge.deleted_at = datetime.now(UTC)
    judge.name = f"{judge.name[:80]} (deleted {judge.id.hex[-6:]})"
    session.flush()


def start_judging(session: Session, actor: Actor | None, run: Run, judge: Judge, where: str = "") -> Job:
    """Queue it. Rollouts that it has judged are kept; one that is at work on the run already is given back."""
    _refuse_deleted(judge)
    refuse_useless(session.get_one(Policy, judge.policy_id))
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
    _refuse_deleted(judge)
    refuse_useless(session.get_one(Policy, judge.policy_id))
    arguments = {"judge_id": str(judge.id), "rollout_id": str(rollout_id)}
    job = enqueue(session, ASK_JOB, queue=Queue.CPU, arguments=arguments)
    job.max_attempts = 2
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


def _fill(session: Session, judge: Judge, request: JudgeRequest) -> None:
    taken = select(Judge.id).where(Judge.name == request.name, Judge.id != judge.id)
    if session.scalar(taken):
        raise JudgeNameIsTaken(f"There is a judge named {request.name} already.")
    policy = session.get(Policy, request.policy_id)
    if policy is None:
        raise InvalidInput(fields={"policy_id": "There is no such policy."})
    try:
        refuse_useless(policy)
        configuration = request.configuration()
    except Conflict as error:
        raise InvalidInput(fields={"policy_id": error.message}) from error
    except ValidationError as error:
        raise InvalidInput(fields=_named(error)) from error
    judge.name, judge.policy_id, judge.policy = request.name, policy.id, policy
    judge.configuration = JudgeConfiguration.model_dump(configuration, mode="json")


def _named(error: ValidationError) -> dict[str, str]:
    """By field of the form."""
    found: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        name = str(item["loc"][0]) if item["loc"] else "criteria"
        found.setdefault(name, str(item["msg"]).removeprefix("Value error, ").rstrip(".") + ".")
    return found


def _refuse_deleted(judge: Judge) -> None:
    if judge.deleted_at is not None:
        raise JudgeIsDeleted


def refuse_useless(policy: Policy, work: str = "be a judge") -> None:
    """A policy that cannot be asked about what others did."""
    if policy.deleted_at is not None:
        raise Conflict(f"The policy {policy.name} was deleted, so it cannot {work}.")
    if policy.kind is PolicyKind.LOCAL:
        raise Conflict(
            f"{policy.name} is a local checkpoint: serve it with `proctor serve` and add that endpoint as a policy."
        )
    if policy.kind not in JUDGING_KINDS:
        raise Conflict(f"{policy.name} cannot {work}: only a model endpoint or a script can.")
