"""The JSON API of asking questions about a run."""

import uuid
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import select

from backend.graders.questions import queries as question_queries
from backend.graders.questions.requests import AskingRequest
from backend.graders.questions.responses import AskedOut, QuestionAnswerOut, TriedOut
from backend.graders.questions.starting import outlook, start, stop, try_out, turn_into_flags
from backend.graders.tables import QuestionAnswer
from backend.runs import queries
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import After, Key, Limit, Page, slice_of

router = APIRouter(prefix="/api/v1/runs/{run_id}/questions", tags=["questions"])


class OutlookAnswer(BaseModel):
    """What asking will take, before it starts."""

    count: int
    """Requests about rollouts, or about groups; what is answered already is not asked again."""
    answered: int
    tokens_in: float | None
    tokens_out: float | None
    cost: float | None
    """US dollars, canaries included; null where the policy has no price."""
    basis: str
    problem: str


class TryRequest(BaseModel):
    where: Annotated[str, Field(max_length=1000)] = ""
    """Which of the completed rollouts; empty: all."""


class FlagRequest(BaseModel):
    """Which answers shall raise flags."""

    answers: Annotated[list[str], Field(max_length=12)] = []
    """Of a question; empty: those that it names itself."""


class FlaggedAnswer(BaseModel):
    flags: int
    """New ones."""


@router.get("")
def questions_of_run(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> Page[AskedOut]:
    """Every question that was asked about the run: progress, answers, citations, cost, agreement with verdicts."""
    found = question_queries.askings_of_run(session, queries.get_run(session, run_id))
    return Page(items=[AskedOut.of(asked) for asked in found])


@router.get("/{question_id}/outlook")
def get_outlook(
    run_id: uuid.UUID, question_id: uuid.UUID, session: SessionDep, _: Viewer, where: str = "", cluster: str = ""
) -> OutlookAnswer:
    """How many rollouts it would be asked about, and about what that costs. Asks nobody."""
    run, question = queries.get_run(session, run_id), question_queries.get_question(session, question_id)
    return OutlookAnswer.model_validate(outlook(session, run, question, where, cluster), from_attributes=True)


@router.post("", status_code=202)
def start_asking(run_id: uuid.UUID, session: SessionDep, actor: Author, request: AskingRequest) -> AskedOut:
    """Ask it about the run's completed rollouts. What was answered already is kept."""
    run = queries.get_run(session, run_id)
    start(session, actor, run, request.question_id, request.where, request.cluster)
    return AskedOut.of(question_queries.get_asked(session, run, request.question_id))


@router.post("/{question_id}/try", status_code=202)
def try_question(
    run_id: uuid.UUID, question_id: uuid.UUID, session: SessionDep, actor: Author, request: TryRequest
) -> TriedOut:
    """Try it on three of the rollouts; nothing is stored. The answer is under `/questions/{id}/tried/{job}`."""
    job = try_out(session, actor, queries.get_run(session, run_id), question_id, request.where)
    return TriedOut.of(question_queries.tried(session, question_id, job.id))


@router.post("/{question_id}/stop")
def stop_asking(run_id: uuid.UUID, question_id: uuid.UUID, session: SessionDep, actor: Author) -> AskedOut:
    """Ask it to stop after what is in flight; what was answered stays."""
    run = queries.get_run(session, run_id)
    stop(session, actor, run, question_id)
    return AskedOut.of(question_queries.get_asked(session, run, question_id))


@router.post("/{question_id}/flags")
def flag_answers(
    run_id: uuid.UUID, question_id: uuid.UUID, session: SessionDep, actor: Author, request: FlagRequest
) -> FlaggedAnswer:
    """Turn stored answers into flags with their quotes as evidence."""
    run = queries.get_run(session, run_id)
    return FlaggedAnswer(flags=turn_into_flags(session, actor, run, question_id, request.answers))


@router.get("/{question_id}/answers")
def answers(
    run_id: uuid.UUID,
    question_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    after: After = None,
    limit: Limit = 100,
) -> Page[QuestionAnswerOut]:
    """What was answered about each rollout of a run, newest first."""
    run = queries.get_run(session, run_id)
    question = question_queries.get_question(session, question_id)
    statement: Any = select(QuestionAnswer).where(
        QuestionAnswer.run_id == run.id, QuestionAnswer.question_id == question.id
    )
    found = slice_of(session, statement, (Key(QuestionAnswer.id),), after=after, limit=limit)
    return Page(items=[QuestionAnswerOut.of(answer) for answer in found.items], next=found.next)
