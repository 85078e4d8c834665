"""Creating, changing and deleting graders; starting and stopping them on runs; trying them.

Free of the web, because the end of an evaluation starts graders too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, topic_of
from backend.core.queue import GRADER_JOB, TRY_GRADER_JOB, enqueue
from backend.core.row_access import is_taken
from backend.core.tables import Job
from backend.domain.graders.settings import GraderKind, QuestionSettings, read_settings
from backend.domain.ids import new_id
from backend.domain.vocabulary import PolicyKind, Queue, Role, RunStatus
from backend.errors import Conflict, InvalidInput, NotAllowed
from backend.graders.queries import GRADING_POLICIES, find_work
from backend.graders.selection import (
    contrast_groups,
    count_of,
    nothing_to_grade,
    rollouts_to_grade,
)
from backend.graders.tables import Grader, GraderRun
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.graders.schemas import GraderRequest
    from backend.web.identity import Actor

MAX_TRIED = 3
"""Rollouts of one try."""
_FIELDS_BY_MESSAGE = {
    "criteria": "criteria",
    "labels": "labels",
    "unknown answers": "flags",
    "write the question": "text",
}


class GraderNameIsTaken(Conflict):
    """A grader with this name already exists."""


class GraderIsDeleted(Conflict):
    """This grader was deleted."""


class GraderIsUsed(Conflict):
    """A grader that was started on a run cannot change: its grades would mean two things. Change a copy instead."""


class GraderIsNotAtWork(Conflict):
    """This grader is not at work on this run."""


def save_grader(session: Session, actor: Actor, request: GraderRequest, grader: Grader | None = None) -> Grader:
    """Create a grader, or update the given one, which has not been started on a run."""
    if grader is None:
        grader = Grader(id=new_id(), created_by=actor.person_id)
    else:
        refuse_fixed(session, grader)
        refuse_role(actor, grader.kind)
    refuse_role(actor, request.kind)
    if is_taken(session, Grader.name, request.name, except_for=grader.id):
        raise GraderNameIsTaken(f"There is a grader named {request.name} already.")
    try:
        same = Policy.id == uuid.UUID(request.policy)
    except ValueError:
        same = Policy.name == request.policy
    policy = session.scalar(select(Policy).where(same))
    if policy is None:
        raise InvalidInput(fields={"policy": "There is no such policy."})
    try:
        _refuse_policy(policy)
        settings = request.settings()
    except Conflict as error:
        raise InvalidInput(fields={"policy": error.message}) from error
    except ValidationError as error:
        fields: dict[str, str] = {}
        for item in error.errors(include_url=False, include_context=False, include_input=False):
            message = str(item["msg"]).removeprefix("Value error, ").rstrip(".") + "."
            if not item["loc"]:  # about several fields: report it at the field that the message names
                place = next((field for words, field in _FIELDS_BY_MESSAGE.items() if words in message), "answers")
            else:
                place = f"control_{item['loc'][1]}" if item["loc"][0] == "controls" else str(item["loc"][0])
            fields.setdefault(place, message[:1].upper() + message[1:])
        raise InvalidInput(fields=fields) from error
    grader.name, grader.kind, grader.policy_id, grader.policy = request.name, request.kind, policy.id, policy
    grader.settings = settings.model_dump(mode="json")
    session.add(grader)
    session.flush()
    return grader


def retire_grader(grader: Grader) -> None:
    """Remove it from all choices. Its grades stay with the rollouts, and its name becomes free."""
    grader.deleted_at = datetime.now(UTC)
    grader.name = f"{grader.name[:80]} (deleted {grader.id.hex[-6:]})"


def can_change(session: Session, grader: Grader) -> bool:
    """Whether it was never started on a run: from then on its settings are fixed."""
    is_used = select(GraderRun.id).where(GraderRun.grader_id == grader.id).limit(1)
    return grader.deleted_at is None and session.scalar(is_used) is None


def refuse_fixed(session: Session, grader: Grader) -> None:
    if grader.deleted_at is not None:
        raise GraderIsDeleted
    if not can_change(session, grader):
        raise GraderIsUsed


def run_grader(
    session: Session, actor: Actor | None, run: Run, grader: Grader, where: str = "", cluster: str = ""
) -> GraderRun:
    """Queue it. Existing grades are kept; if it is at work on the run already, that work is returned.

    Raises InvalidInput for a bad filter or if there is nothing to grade.
    """
    refuse_unable(session, grader)
    settings = read_settings(grader.settings)
    if isinstance(settings, QuestionSettings) and settings.kind is GraderKind.CONTRAST:
        is_empty = not contrast_groups(session, run, settings.each, where, cluster)
    else:
        is_empty = not count_of(session, rollouts_to_grade(session, run, settings, where))
    if is_empty and actor is not None:
        problem = nothing_to_grade(settings, where)
        raise InvalidInput(problem, fields={"where": problem})
    session.execute(select(Grader.id).where(Grader.id == grader.id).with_for_update())
    work = find_work(session, run.id, grader.id, for_update=True)
    if work is not None and not work.status.is_over:
        return work
    if work is None:
        work = GraderRun(id=new_id(), grader_id=grader.id, run_id=run.id, created_by=actor.person_id if actor else None)
        session.add(work)
    work.where, work.cluster, work.is_sampled = where, cluster or None, False
    return queue_work(session, work)


def queue_work(session: Session, work: GraderRun) -> GraderRun:
    """Queue what it has not graded yet."""
    work.status, work.reason, work.total, work.stop_requested = RunStatus.QUEUED, None, None, False
    work.ended_at = None
    session.flush()
    work.job_id = enqueue(session, GRADER_JOB, queue=Queue.CPU, arguments={"grader_run_id": str(work.id)}).id
    session.flush()
    announce(session, topic_of("graders", work.run_id))
    return work


def continue_sample(session: Session, run: Run, grader: Grader) -> GraderRun:
    """Queue the rest of the sample that a budget chose."""
    refuse_unable(session, grader)
    work = find_work(session, run.id, grader.id, for_update=True)
    if work is None or not work.is_sampled:
        raise Conflict(f"No budget chose rollouts of this run for {grader.name}.")
    return work if not work.status.is_over else queue_work(session, work)


def start_named(session: Session, run: Run, grader_ids: Iterable[str]) -> None:
    """Start the graders that an evaluation's plan names. Deleted ones are skipped."""
    for grader_id in grader_ids:
        grader = session.get(Grader, uuid.UUID(grader_id))
        if grader is None or grader.deleted_at is not None:
            continue
        try:
            run_grader(session, None, run, grader)
            audit(session, None, "grader.run", "run", run.id, grader=grader.name)
        except Conflict as refused:
            work = GraderRun(
                id=new_id(), grader_id=grader.id, run_id=run.id, status=RunStatus.FAILED, reason=refused.message
            )
            session.add(work)
            session.flush()


def stop_grader(session: Session, run: Run, grader: Grader) -> GraderRun:
    """Stop it after the requests in flight; a queued one stops at once. Existing grades stay."""
    work = find_work(session, run.id, grader.id, for_update=True)
    if work is None or work.status.is_over:
        raise GraderIsNotAtWork(f"{grader.name} is not at work on this run.")
    work.stop_requested = True
    if work.status is RunStatus.QUEUED:
        work.status, work.reason = RunStatus.STOPPED, "Stopped before it started."
    session.flush()
    announce(session, topic_of("graders", run.id))
    return work


def try_grader(session: Session, grader: Grader, rollout_ids: Sequence[uuid.UUID]) -> Job:
    """Grade a few rollouts. The row of the returned job will hold the result; nothing else is stored."""
    refuse_unable(session, grader)
    chosen = [str(each) for each in rollout_ids[:MAX_TRIED]]
    arguments = {"grader_id": str(grader.id), "rollout_ids": chosen}
    job = enqueue(session, TRY_GRADER_JOB, queue=Queue.CPU, arguments=arguments)
    job.max_attempts = 2
    return job


def refuse_role(actor: Actor, kind: GraderKind) -> None:
    """Scores of judges can become part of a reward, so judges need the role trainer."""
    if kind is GraderKind.JUDGE and not actor.role.includes(Role.TRAINER):
        raise NotAllowed("Creating, changing and deleting judges needs the role trainer.")


def refuse_unable(session: Session, grader: Grader) -> None:
    """A deleted grader, or one whose policy cannot grade anymore."""
    if grader.deleted_at is not None:
        raise GraderIsDeleted
    _refuse_policy(session.get_one(Policy, grader.policy_id))


def _refuse_policy(policy: Policy) -> None:
    if policy.deleted_at is not None:
        raise Conflict(f"The policy {policy.name} was deleted, so it cannot grade.")
    if policy.kind is PolicyKind.LOCAL:
        raise Conflict(
            f"{policy.name} is a local checkpoint. Serve it with `proctor serve` and add that endpoint as a policy."
        )
    if policy.kind not in GRADING_POLICIES:
        raise Conflict(f"{policy.name} cannot grade. Only model endpoints and scripted policies can.")
