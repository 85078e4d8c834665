"""The JSON API of questions; that of asking them about a run is in `evaluations.api.questions`."""

import uuid

from fastapi import APIRouter

from backend.graders.questions import queries
from backend.graders.questions.requests import QuestionRequest
from backend.graders.questions.responses import QuestionAnswerOut, QuestionOut, TriedOut
from backend.graders.questions.service import QUESTIONS
from backend.review.queries import get_rollout
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["questions"])


@router.get("/questions")
def list_questions(session: SessionDep, _: Viewer) -> Page[QuestionOut]:
    """Questions, reasoning monitors and contrasts that were not deleted, by name."""
    return Page(items=[QuestionOut.of(question) for question in queries.questions(session)])


@router.post("/questions", status_code=201)
def add_question(session: SessionDep, actor: Author, request: QuestionRequest) -> QuestionOut:
    return QuestionOut.of(QUESTIONS.add(session, actor, request))


@router.get("/questions/{question_id}")
def get_question(question_id: uuid.UUID, session: SessionDep, _: Viewer) -> QuestionOut:
    return QuestionOut.of(queries.get_question(session, question_id))


@router.put("/questions/{question_id}")
def change_question(
    question_id: uuid.UUID, session: SessionDep, actor: Author, request: QuestionRequest
) -> QuestionOut:
    """Only while it was not asked about a run; afterwards add another one."""
    return QuestionOut.of(QUESTIONS.change(session, actor, question_id, request))


@router.delete("/questions/{question_id}", status_code=204)
def delete_question(question_id: uuid.UUID, session: SessionDep, actor: Author) -> None:
    """Its answers stay with their rollouts; its name is free again."""
    QUESTIONS.delete(session, actor, question_id)


@router.get("/questions/{question_id}/tried/{job_id}")
def get_tried(question_id: uuid.UUID, job_id: uuid.UUID, session: SessionDep, _: Author) -> TriedOut:
    return TriedOut.of(queries.tried(session, question_id, job_id))


@router.get("/rollouts/{rollout_id}/answers")
def answers_of_rollout(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> Page[QuestionAnswerOut]:
    """What was answered about a rollout, by question."""
    rollout = get_rollout(session, rollout_id)
    found = queries.answers_of_rollout(session, rollout.id)
    return Page(items=[QuestionAnswerOut.of(answer) for _, answer in found])
