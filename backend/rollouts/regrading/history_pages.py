"""/environments/{name}/versions/{number}/history: all that was played, by this version's rewards."""

import time
from collections.abc import AsyncIterable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS
from backend.environments.queries import get_environment, get_version
from backend.environments.tables import Environment, EnvironmentVersion
from backend.rollouts.regrading.history import grade_again, history_of
from backend.rollouts.regrading.history_view import HistoryAnswer, told
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.page import page, render_block, see_other
from backend.web.shared import Shared
from backend.web.streams import AGAIN, END, live

router = APIRouter(prefix="/environments/{name}/versions/{number}/history")
TEMPLATE = "rollouts/regrading/history.html"


@dataclass(frozen=True, slots=True)
class HistoryPage:
    environment: Environment
    version: EnvironmentVersion
    history: HistoryAnswer


_histories: Shared[HistoryPage] = Shared()
"""Of the versions that somebody watches: what follows from a long history takes a while."""


@router.get("", response_class=HTMLResponse)
def show_history(request: Request, session: SessionDep, _: Viewer, name: str, number: int) -> HTMLResponse:
    return page(request, TEMPLATE, _context(session, name, number), block="graded_history")


@router.get("/events", response_class=EventSourceResponse)
async def history_events(request: Request, _: Viewer, name: str, number: int) -> AsyncIterable[ServerSentEvent]:
    heard: tuple[int, ...] = ()
    since = 0.0

    def render(session: Session) -> dict[str, str]:
        nonlocal heard, since
        before, heard = heard, request.app.state.hub.mark(RUNS)
        if heard != before:
            since = time.monotonic()
        context, again = _histories.read((name, number), since, lambda: _context(session, name, number))
        blocks = {"graded_history": render_block(request, TEMPLATE, "graded_history", context)}
        if not context.history.open:
            blocks[END] = ""
        elif again:
            blocks[AGAIN] = str(again)
        return blocks

    async for event in live(request, (RUNS,), render):
        yield event


@router.post("", response_class=HTMLResponse)
def regrade(session: SessionDep, actor: Author, name: str, number: int) -> Response:
    started = grade_again(session, actor, get_version(session, get_environment(session, name), number))
    told_so = f"Queued: {len(started)} {'re-score' if len(started) == 1 else 're-scores'} in the background."
    return see_other(f"/environments/{name}/versions/{number}/history", told_so)


def _context(session: Session, name: str, number: int) -> HistoryPage:
    environment = get_environment(session, name)
    version = get_version(session, environment, number)
    return HistoryPage(environment, version, told(session, name, history_of(session, version)))
