"""/runs/{id}/judges: what model judges say of a run, how far they are, and how far people agree with them."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import judges_topic
from backend.graders.judges import queries as judge_queries
from backend.graders.judges.queries import JudgedRun
from backend.graders.judges.requests import JudgingRequest
from backend.graders.judges.starting import start, stop
from backend.graders.page_parts import inquiry_choices
from backend.graders.tables import Judge
from backend.runs import queries
from backend.runs.header import RunHeader, run_header
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()
TEMPLATE = "graders/judges/run.html"


@dataclass(frozen=True, slots=True)
class RunJudgesPage:
    """A run's judges, those at work first."""

    head: RunHeader
    run: Run
    works: list[JudgedRun]
    choices: Sequence[Judge]
    judge_choices: list[tuple[str, str]]
    where: str
    is_under_way: bool

    @property
    def is_over(self) -> bool:
        return not self.is_under_way


@router.get("/runs/{run_id}/judges", response_class=HTMLResponse)
def show_judges(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, where: str = "") -> HTMLResponse:
    return page(request, TEMPLATE, _context(session, run_id, where[:1000]), block="judge_blocks")


@router.get("/runs/{run_id}/judges/events", response_class=EventSourceResponse)
async def judges_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    """The blocks whenever a judge has judged more."""

    def read(session: Session) -> RunJudgesPage:
        return _context(session, run_id)

    async for event in live_blocks(request, (judges_topic(run_id),), TEMPLATE, ["judge_blocks"], read):
        yield event


@router.post("/runs/{run_id}/judges", response_class=HTMLResponse)
def start_judging(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[JudgingRequest, Depends(read_form(JudgingRequest))],
) -> Response:
    judge = start(session, actor, queries.get_run(session, run_id), form)
    return see_other(f"/runs/{run_id}/judges", f"{judge.name} will look at what it has not judged yet.")


@router.post("/runs/{run_id}/judges/{judge_id}/stop", response_class=HTMLResponse)
def stop_judging(run_id: uuid.UUID, judge_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    judge = stop(session, actor, queries.get_run(session, run_id), judge_id)
    return see_other(f"/runs/{run_id}/judges", f"{judge.name} stops after what is in flight.")


def _context(session: Session, run_id: uuid.UUID, where: str = "") -> RunJudgesPage:
    run = queries.get_run(session, run_id)
    works = sorted(judge_queries.judging_of_run(session, run), key=lambda each: not each.is_under_way)
    choices = judge_queries.judges(session)
    return RunJudgesPage(
        head=run_header(session, run),
        run=run,
        works=works,
        choices=choices,
        judge_choices=inquiry_choices(choices),
        where=where,
        is_under_way=any(each.is_under_way for each in works),
    )
