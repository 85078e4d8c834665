"""/runs/{id}/onset: confirmed patterns of a training run, when each began, and the way back."""

import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS, run_topic
from backend.runs.tables import Run
from backend.studies.onset import queries, service
from backend.studies.onset.schemas import OnsetRequest
from backend.studies.onset.view import OnsetAnswer, onset_of
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter(prefix="/runs/{run_id}/onset")
TEMPLATE = "studies/onset.html"


@dataclass(frozen=True, slots=True)
class OnsetPage:
    run: Run
    onset: OnsetAnswer
    rollouts: int
    """That each checkpoint plays, unless said otherwise."""

    @property
    def is_over(self) -> bool:
        return not self.onset.is_open


@router.get("", response_class=HTMLResponse)
def show_onset(request: Request, session: SessionDep, _: Viewer, run_id: uuid.UUID) -> HTMLResponse:
    return page(request, TEMPLATE, _context(session, run_id), block="onset_searches")


@router.get("/events", response_class=EventSourceResponse)
async def onset_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> OnsetPage:
        return _context(session, run_id)

    async for event in live_blocks(request, (run_topic(run_id), RUNS), TEMPLATE, ["onset_searches"], read):
        yield event


@router.post("", response_class=HTMLResponse)
def start(
    session: SessionDep,
    actor: Author,
    run_id: uuid.UUID,
    form: Annotated[OnsetRequest, Depends(read_form(OnsetRequest))],
) -> Response:
    service.start_search(session, actor, queries.get_training(session, run_id), form)
    return see_other(f"/runs/{run_id}/onset", "Queued: the starting policy plays first, then checkpoints in between.")


@router.post("/{search_id}/stop", response_class=HTMLResponse)
def stop(session: SessionDep, actor: Author, run_id: uuid.UUID, search_id: uuid.UUID) -> Response:
    service.SEARCHES.stop(session, actor, queries.get_search(session, run_id, search_id))
    return see_other(f"/runs/{run_id}/onset", "Stopped. What was sampled is kept.")


@router.post("/{search_id}/resume", response_class=HTMLResponse)
def resume(session: SessionDep, actor: Author, run_id: uuid.UUID, search_id: uuid.UUID) -> Response:
    service.SEARCHES.resume(session, actor, queries.get_search(session, run_id, search_id))
    return see_other(f"/runs/{run_id}/onset", "It goes on where it stopped.")


def _context(session: Session, run_id: uuid.UUID) -> OnsetPage:
    run = queries.get_training(session, run_id)
    return OnsetPage(run, onset_of(session, run), service.ROLLOUTS)
