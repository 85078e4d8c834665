"""Questions: adding, changing, deleting; asking one about a run, stopping it, trying it on a few rollouts.

Free of the web and of filters: what a filter wants is counted by `evaluations.question_starts`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Asking, Job, Policy, Question, Run
from backend.domain.ids import new_id
from backend.domain.questions import QuestionConfiguration
from backend.domain.vocabulary import Queue, RunStatus
from backend.errors import Conflict, InvalidInput
from backend.events import announce, judges_topic
from backend.judging.judges_service import refuse_useless
from backend.queue import QUESTION_JOB, TRY_QUESTION_JOB, enqueue
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.judging.questions.forms import QuestionRequest
    from backend.web.identity import Actor

MOST_TRIED = 3
"""Rollouts that a question is tried on at a time."""


class QuestionNameIsTaken(Conflict):
    """There is a question of this name already."""


class QuestionIsDeleted(Conflict):
    """This question was deleted."""


class QuestionWasAnswered(Conflict):
    """A question that was asked is not changed: its answers would mean two things. Copy it and change the copy."""


class NothingToStop(Conflict):
    """This question is not being asked about this run."""


def add_question(session: Session, actor: Actor, request: QuestionRequest) -> Question:
    question = Question(id=new_id(), created_by=actor.person_id)
    _fill(session, question, request)
    session.add(question)
    session.flush()
    audit(session, actor, "question.add", "question", question.id, name=question.name)
    return question


def change_question(session: Session, actor: Actor, question: Question, request: QuestionRequest) -> Question:
    """Only while it was not asked about a run."""
    _refuse_deleted(question)
    if was_asked(session, question):
        raise QuestionWasAnswered
    _fill(session, question, request)
    session.flush()
    audit(session, actor, "question.change", "question", question.id, name=question.name)
    return question


def was_asked(session: Session, question: Question) -> bool:
    asked = select(Asking.id).where(Asking.question_id == question.id).limit(1)
    return session.scalar(asked) is not None


def delete_question(session: Session, actor: Actor, question: Question) -> None:
    """Take it out of all choices and columns. Its answers stay with their rollouts; its name is free again."""
    _refuse_deleted(question)
    audit(session, actor, "question.delete", "question", question.id, name=question.name)
    question.deleted_at = datetime.now(UTC)
    question.name = f"{question.name[:80]} (deleted {question.id.hex[-6:]})"
    session.flush()


def start_asking(
    session: Session, actor: Actor, run: Run, question: Question, where: str = "", cluster: str = ""
) -> Asking:
    """Queue it. What was answered is kept; what is under way already is given back."""
    _refuse_deleted(question)
    refuse_useless(session.get_one(Policy, question.policy_id), "answer")
    session.execute(select(Question.id).where(Question.id == question.id).with_for_update())
    asking = find_asking(session, run.id, question.id, for_update=True)
    if asking is not None and not asking.status.is_over:
        return asking
    if asking is None:
        asking = Asking(id=new_id(), question_id=question.id, run_id=run.id, created_by=actor.person_id)
        session.add(asking)
    asking.where, asking.cluster = where, cluster or None
    asking.status, asking.reason, asking.total, asking.stop_requested = RunStatus.QUEUED, None, None, False
    asking.ended_at = None
    session.flush()
    job = enqueue(session, QUESTION_JOB, queue=Queue.CPU, arguments={"asking_id": str(asking.id)})
    asking.job_id = job.id
    session.flush()
    audit(session, actor, "question.ask", "run", run.id, question=question.name, where=where)
    announce(session, judges_topic(run.id))
    return asking


def stop_asking(session: Session, actor: Actor, run: Run, question: Question) -> Asking:
    """Ask it to stop after what is in flight; a queued one stops at once. What was answered stays."""
    asking = find_asking(session, run.id, question.id, for_update=True)
    if asking is None or asking.status.is_over:
        raise NothingToStop(f"{question.name} is not being asked about this run.")
    asking.stop_requested = True
    if asking.status is RunStatus.QUEUED:
        asking.status, asking.reason = RunStatus.STOPPED, "Stopped before it began."
    session.flush()
    audit(session, actor, "question.stop", "run", run.id, question=question.name)
    announce(session, judges_topic(run.id))
    return asking


def try_question(session: Session, actor: Actor, question: Question, rollout_ids: Sequence[uuid.UUID]) -> Job:
    """On a few rollouts: the job's row will hold what was asked and answered, and nothing else is stored."""
    _refuse_deleted(question)
    refuse_useless(session.get_one(Policy, question.policy_id), "answer")
    arguments = {"question_id": str(question.id), "rollout_ids": [str(each) for each in rollout_ids[:MOST_TRIED]]}
    job = enqueue(session, TRY_QUESTION_JOB, queue=Queue.CPU, arguments=arguments)
    job.max_attempts = 2
    audit(session, actor, "question.try", "question", question.id, name=question.name)
    return job


def find_asking(
    session: Session, run_id: uuid.UUID, question_id: uuid.UUID, *, for_update: bool = False
) -> Asking | None:
    statement = select(Asking).where(Asking.run_id == run_id, Asking.question_id == question_id)
    return session.scalar(statement.with_for_update() if for_update else statement)


def _fill(session: Session, question: Question, request: QuestionRequest) -> None:
    taken = select(Question.id).where(Question.name == request.name, Question.id != question.id)
    if session.scalar(taken):
        raise QuestionNameIsTaken(f"There is a question named {request.name} already.")
    policy = session.get(Policy, request.policy_id)
    if policy is None:
        raise InvalidInput(fields={"policy_id": "There is no such policy."})
    try:
        refuse_useless(policy, "answer")
        configuration = request.configuration()
    except Conflict as error:
        raise InvalidInput(fields={"policy_id": error.message}) from error
    except ValidationError as error:
        raise InvalidInput(fields=_named(error)) from error
    question.name, question.kind = request.name, configuration.kind
    question.policy_id, question.policy = policy.id, policy
    question.configuration = QuestionConfiguration.model_dump(configuration, mode="json")


def _named(error: ValidationError) -> dict[str, str]:
    """By field of the form; what concerns several fields stands under the one that is probably wrong."""
    found: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        said = str(item["msg"]).removeprefix("Value error, ").rstrip(".") + "."
        name = str(item["loc"][0]) if item["loc"] else _meant(said)
        found.setdefault(name, said[:1].upper() + said[1:])
    return found


def _meant(said: str) -> str:
    words = {"labels": "labels", "no answer is called": "flags", "write the question": "text"}
    return next((field for start, field in words.items() if start in said), "answers")


def _refuse_deleted(question: Question) -> None:
    if question.deleted_at is not None:
        raise QuestionIsDeleted
