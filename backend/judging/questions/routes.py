"""/questions: questions in plain words, reasoning monitors, contrasts. Asking them about a run is a tab of the run."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.db.models import Policy, Question
from backend.domain.questions import AnswerType, QuestionConfiguration, QuestionKind
from backend.events import job_topic
from backend.judging.inquiries.pages import name_of_copy, policy_choices
from backend.judging.inquiries.queries import Try, askable_policies
from backend.judging.questions import queries
from backend.judging.questions.forms import QuestionRequest
from backend.judging.questions.queries import AnswerFigures, AskedRun
from backend.judging.questions.service import QUESTIONS
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.forms import read_form
from backend.web.pages import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()
TRIED = "questions/tried.html"


@dataclass(frozen=True, slots=True)
class QuestionsPage:
    """All questions by name."""

    questions: Sequence[Question]
    configurations: dict[uuid.UUID, QuestionConfiguration]
    figures: dict[uuid.UUID, AnswerFigures]


@dataclass(frozen=True, slots=True)
class QuestionFormPage:
    """The form: blank, copied from a question, or of one that was not asked yet."""

    question: Question | None
    name: str
    policy_id: uuid.UUID | None
    configuration: QuestionConfiguration
    kind: QuestionKind
    policies: Sequence[Policy]
    policy_choices: list[tuple[str, str]]
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
    found = queries.questions(session)
    configurations = {question.id: queries.configuration_of(question) for question in found}
    figures = queries.count_answers(session, [question.id for question in found])
    return page(request, "questions/list.html", QuestionsPage(found, configurations, figures))


@router.get("/questions/new", response_class=HTMLResponse)
def new_question(
    request: Request,
    session: SessionDep,
    _: Author,
    kind: QuestionKind = QuestionKind.QUESTION,
    copy: uuid.UUID | None = None,
) -> HTMLResponse:
    """Blank, or a copy to be changed."""
    if copy is None:
        return page(request, "questions/new.html", _form(session, None, "", None, blank(kind)))
    question = queries.get_question(session, copy)
    asked = queries.configuration_of(question)
    context = _form(session, None, name_of_copy(question), question.policy_id, asked)
    return page(request, "questions/new.html", context)


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
    return page(request, "questions/detail.html", context)


@router.get("/questions/{question_id}/edit", response_class=HTMLResponse)
def edit_question(request: Request, question_id: uuid.UUID, session: SessionDep, _: Author) -> HTMLResponse:
    question = queries.get_question(session, question_id)
    QUESTIONS.refuse_used(session, question)
    asked = queries.configuration_of(question)
    return page(request, "questions/new.html", _form(session, question, question.name, question.policy_id, asked))


@router.post("/questions/{question_id}/edit", response_class=HTMLResponse)
def change_question(
    question_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[QuestionRequest, Depends(read_form(QuestionRequest))],
) -> Response:
    question = QUESTIONS.change(session, actor, queries.get_question(session, question_id), form)
    return see_other(f"/questions/{question.id}", f"The question {question.name} was changed.")


@router.post("/questions/{question_id}/delete", response_class=HTMLResponse)
def delete_question(question_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    question = queries.get_question(session, question_id)
    name = question.name
    QUESTIONS.delete(session, actor, question)
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


def _form(
    session: Session,
    question: Question | None,
    name: str,
    policy_id: uuid.UUID | None,
    configuration: QuestionConfiguration,
) -> QuestionFormPage:
    policies = askable_policies(session)
    return QuestionFormPage(
        question=question,
        name=name,
        policy_id=policy_id,
        configuration=configuration,
        kind=configuration.kind,
        policies=policies,
        policy_choices=policy_choices(policies),
        answer_types=[(str(key), text, note) for key, text, note in _ANSWER_TYPES],
    )
