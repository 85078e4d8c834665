"""/questions: questions in plain words, reasoning monitors, contrasts. Asking them about a run is a tab of the run."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import job_topic
from backend.domain.graders.questions import AnswerType, QuestionConfiguration, QuestionKind
from backend.graders.page_parts import InquiryForm, Listed, change_form, listed, new_form
from backend.graders.queries import Try
from backend.graders.questions import queries
from backend.graders.questions.queries import AnswerFigures, AskedRun
from backend.graders.questions.requests import QuestionRequest
from backend.graders.questions.service import QUESTIONS
from backend.graders.tables import Question
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()
FORM = "graders/questions/new.html"
TRIED = "graders/questions/tried.html"


@dataclass(frozen=True, slots=True)
class QuestionsPage:
    """All questions by name."""

    questions: Sequence[Listed[Question, QuestionConfiguration, AnswerFigures]]


@dataclass(frozen=True, slots=True)
class QuestionFormPage:
    form: InquiryForm[Question]
    configuration: QuestionConfiguration
    kind: QuestionKind
    answer_types: list[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class QuestionPage:
    question: Question
    configuration: QuestionConfiguration
    runs: Sequence[AskedRun]
    can_change: bool


_ANSWER_TYPES = [
    (AnswerType.YES_NO, "Yes or no", "The clearest question gets the steadiest answers."),
    (AnswerType.FIVE, "1 to 5", "1 is the least, 5 the most."),
    (AnswerType.LABELS, "One of a list", "Name the labels below."),
]


@router.get("/questions", response_class=HTMLResponse)
def list_questions(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    found = listed(session, Question, queries.configuration_of, queries.count_answers, AnswerFigures())
    return page(request, "graders/questions/list.html", QuestionsPage(found))


@router.get("/questions/new", response_class=HTMLResponse)
def new_question(
    request: Request,
    session: SessionDep,
    _: Author,
    kind: QuestionKind = QuestionKind.QUESTION,
    copy: uuid.UUID | None = None,
) -> HTMLResponse:
    return page(request, FORM, _form(new_form(session, Question, copy), kind))


@router.post("/questions", response_class=HTMLResponse)
def add_question(
    session: SessionDep, actor: Author, form: Annotated[QuestionRequest, Depends(read_form(QuestionRequest))]
) -> Response:
    question = QUESTIONS.add(session, actor, form)
    return see_other(f"/questions/{question.id}", "Ask it about a run now: open the run's tab Questions.")


@router.get("/questions/{question_id}", response_class=HTMLResponse)
def show_question(request: Request, question_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    question = queries.get_question(session, question_id)
    context = QuestionPage(
        question,
        queries.configuration_of(question),
        queries.askings_of_question(session, question),
        can_change=QUESTIONS.can_change(session, question),
    )
    return page(request, "graders/questions/detail.html", context)


@router.get("/questions/{question_id}/edit", response_class=HTMLResponse)
def edit_question(request: Request, question_id: uuid.UUID, session: SessionDep, _: Author) -> HTMLResponse:
    return page(request, FORM, _form(change_form(session, QUESTIONS, question_id), QuestionKind.QUESTION))


@router.post("/questions/{question_id}/edit", response_class=HTMLResponse)
def change_question(
    question_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[QuestionRequest, Depends(read_form(QuestionRequest))],
) -> Response:
    question = QUESTIONS.change(session, actor, question_id, form)
    return see_other(f"/questions/{question.id}", f"The question {question.name} was changed.")


@router.post("/questions/{question_id}/delete", response_class=HTMLResponse)
def delete_question(question_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    name = QUESTIONS.delete(session, actor, question_id)
    return see_other("/questions", f"The question {name} was deleted. Its answers stay with the rollouts.")


@router.get("/questions/{question_id}/tried/{job_id}", response_class=HTMLResponse)
def show_tried(request: Request, question_id: uuid.UUID, job_id: uuid.UUID, session: SessionDep, _: Author) -> Response:
    return page(request, TRIED, queries.tried(session, question_id, job_id))


@router.get("/questions/{question_id}/tried/{job_id}/events", response_class=EventSourceResponse)
async def tried_events(
    request: Request, question_id: uuid.UUID, job_id: uuid.UUID, _: Author
) -> AsyncIterable[ServerSentEvent]:
    """The answers as soon as they are there."""

    def read(session: Session) -> Try[Question]:
        return queries.tried(session, question_id, job_id)

    async for event in live_blocks(request, (job_topic(job_id),), TRIED, ["tried_answers"], read):
        yield event


def blank(kind: QuestionKind) -> QuestionConfiguration:
    """What the form begins with; of a question the example is only a placeholder."""
    is_own = kind is QuestionKind.QUESTION
    answers = AnswerType.YES_NO if is_own else AnswerType.SUSPICION
    return QuestionConfiguration(kind=kind, text="…" if is_own else "", answers=answers)


def _form(begun: InquiryForm[Question], kind: QuestionKind) -> QuestionFormPage:
    configuration = queries.configuration_of(begun.source) if begun.source else blank(kind)
    return QuestionFormPage(
        form=begun,
        configuration=configuration,
        kind=configuration.kind,
        answer_types=[(str(key), text, note) for key, text, note in _ANSWER_TYPES],
    )
