"""/runs/{id}/questions: what questions, monitors and contrasts found in a run; asking more, its cost beforehand."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.core.events import judges_topic
from backend.errors import InvalidInput
from backend.graders.page_parts import inquiry_choices
from backend.graders.questions import queries as question_queries
from backend.graders.questions.queries import AskedRun
from backend.graders.questions.requests import AskingRequest, Words
from backend.graders.questions.starting import Outlook, outlook, start, stop, try_out, turn_into_flags
from backend.graders.tables import Question
from backend.runs import queries
from backend.runs.header import RunHeader, run_header
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter(prefix="/runs/{run_id}/questions")
TEMPLATE = "graders/questions/run.html"


@dataclass(frozen=True, slots=True)
class RunQuestionsPage:
    """What was asked about a run, what is under way first."""

    head: RunHeader
    run: Run
    asked: list[AskedRun]
    choices: Sequence[Question]
    question_choices: list[tuple[str, str]]
    chosen: Question | None
    """Looked at before it is asked."""
    where: str
    cluster: str
    outlook: Outlook | None
    wrong: str
    """Why the filter cannot be read."""
    is_under_way: bool

    @property
    def is_over(self) -> bool:
        return not self.is_under_way


class FlagForm(BaseModel):
    answers: Words = []


@router.get("", response_class=HTMLResponse)
def show_questions(
    request: Request,
    run_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    question: uuid.UUID | None = None,
    where: str = "",
    cluster: str = "",
) -> HTMLResponse:
    """With a question: what asking it would take."""
    context = _context(session, run_id, question, where[:1000], cluster[:300])
    return page(request, TEMPLATE, context)


@router.get("/events", response_class=EventSourceResponse)
async def question_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    """The blocks whenever more was answered."""

    def read(session: Session) -> RunQuestionsPage:
        return _context(session, run_id)

    async for event in live_blocks(request, (judges_topic(run_id),), TEMPLATE, ["question_blocks"], read):
        yield event


@router.post("", response_class=HTMLResponse)
def start_asking(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[AskingRequest, Depends(read_form(AskingRequest))],
) -> Response:
    run = queries.get_run(session, run_id)
    start(session, actor, run, form.question_id, form.where, form.cluster)
    return see_other(f"/runs/{run_id}/questions", "It is being asked about what is not answered yet.")


@router.post("/try", response_class=HTMLResponse)
def try_question(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[AskingRequest, Depends(read_form(AskingRequest))],
) -> Response:
    job = try_out(session, actor, queries.get_run(session, run_id), form.question_id, form.where)
    return see_other(f"/questions/{form.question_id}/tried/{job.id}")


@router.post("/{question_id}/stop", response_class=HTMLResponse)
def stop_asking(run_id: uuid.UUID, question_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    stop(session, actor, queries.get_run(session, run_id), question_id)
    return see_other(f"/runs/{run_id}/questions", "It stops after what is in flight.")


@router.post("/{question_id}/flags", response_class=HTMLResponse)
def flag_answers(
    run_id: uuid.UUID,
    question_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[FlagForm, Depends(read_form(FlagForm))],
) -> Response:
    new = turn_into_flags(session, actor, queries.get_run(session, run_id), question_id, form.answers)
    return see_other(f"/runs/{run_id}/questions", f"{new} new flag{'' if new == 1 else 's'} in the review queue.")


def _context(
    session: Session, run_id: uuid.UUID, question_id: uuid.UUID | None = None, where: str = "", cluster: str = ""
) -> RunQuestionsPage:
    run = queries.get_run(session, run_id)
    asked = sorted(question_queries.askings_of_run(session, run), key=lambda each: not each.is_under_way)
    choices = question_queries.questions(session)
    chosen = question_queries.get_question(session, question_id) if question_id else None
    foreseen, wrong = _foreseen(session, run, chosen, where, cluster)
    return RunQuestionsPage(
        head=run_header(session, run),
        run=run,
        asked=asked,
        choices=choices,
        question_choices=inquiry_choices(choices),
        chosen=chosen,
        where=where,
        cluster=cluster,
        outlook=foreseen,
        wrong=wrong,
        is_under_way=any(each.is_under_way for each in asked),
    )


def _foreseen(
    session: Session, run: Run, chosen: Question | None, where: str, cluster: str
) -> tuple[Outlook | None, str]:
    if chosen is None:
        return None, ""
    try:
        return outlook(session, run, chosen, where, cluster), ""
    except InvalidInput as error:
        return None, next(iter(error.fields.values()), error.message)
