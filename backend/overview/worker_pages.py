"""`/settings/workers`: who works here, with what, at what."""

from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS
from backend.domain.vocabulary import Queue
from backend.overview.queries import waiting_jobs
from backend.overview.workers import Ability, WorkerView, abilities, worker_views
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page, render_block
from backend.web.streams import live

router = APIRouter()


@dataclass(frozen=True, slots=True)
class WorkersPage:
    workers: Sequence[WorkerView]
    abilities: Sequence[Ability]
    waiting: dict[Queue, int]


def _context(session: Session) -> WorkersPage:
    views = worker_views(session)
    return WorkersPage(views, abilities(views), waiting_jobs(session))


@router.get("/settings/workers", response_class=HTMLResponse)
def show_workers(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "overview/workers.html", _context(session))


@router.get("/settings/workers/events", response_class=EventSourceResponse)
async def follow_workers(request: Request, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        return {"worker_list": render_block(request, "overview/workers.html", "worker_list", _context(session))}

    async for event in live(request, (RUNS,), render):
        yield event
