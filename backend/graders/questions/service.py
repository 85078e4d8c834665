"""Questions: what is refused of them; asking one about a run, stopping it, trying it on a few rollouts.

Free of the web and of filters: what a filter wants is counted by `evaluations.question_starts`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import announce, judges_topic
from backend.core.queue import QUESTION_JOB, TRY_QUESTION_JOB, enqueue
from backend.core.tables import Job
from backend.domain.graders.questions import QuestionKind
from backend.domain.ids import new_id
from backend.domain.vocabulary import Queue, RunStatus
from backend.errors import Conflict
from backend.graders.service import Request, Rules
from backend.graders.tables import Asking, Question
from backend.runs.tables import Run
from backend.web.audit import audit

if TYPE_CHECKING:
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


def was_asked(session: Session, question: Question) -> bool:
    asked = select(Asking.id).where(Asking.question_id == question.id).limit(1)
    return session.scalar(asked) is not None


def _blamed(said: str) -> str:
    words = {"labels": "labels", "no answer is called": "flags", "write the question": "text"}
    return next((field for start, field in words.items() if start in said), "answers")


class _QuestionRules(Rules[Question]):
    def _fill(self, session: Session, row: Question, request: Request) -> None:
        super()._fill(session, row, request)
        row.kind = QuestionKind(row.configuration["kind"])


QUESTIONS = _QuestionRules(
    rows=Question,
    work="answer",
    name_is_taken=QuestionNameIsTaken,
    is_deleted=QuestionIsDeleted,
    was_used=QuestionWasAnswered,
    is_used=was_asked,
    blamed=_blamed,
)


def start_asking(
    session: Session, actor: Actor, run: Run, question: Question, where: str = "", cluster: str = ""
) -> Asking:
    """Queue it. What was answered is kept; what is under way already is given back."""
    QUESTIONS.refuse_useless(session, question)
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
    chosen = [str(each) for each in rollout_ids[:MOST_TRIED]]
    job = QUESTIONS.begin_try(session, question, TRY_QUESTION_JOB, {"rollout_ids": chosen})
    audit(session, actor, "question.try", "question", question.id, name=question.name)
    return job


def find_asking(
    session: Session, run_id: uuid.UUID, question_id: uuid.UUID, *, for_update: bool = False
) -> Asking | None:
    statement = select(Asking).where(Asking.run_id == run_id, Asking.question_id == question_id)
    return session.scalar(statement.with_for_update() if for_update else statement)
