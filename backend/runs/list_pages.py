"""/runs: all runs, newest first, live."""

from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS
from backend.domain.vocabulary import RunKind, RunStatus
from backend.runs import queries
from backend.runs.requests import RunFilter
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page, render_block
from backend.web.streams import live

router = APIRouter()
TEMPLATE = "runs/list.html"


@dataclass(frozen=True, slots=True)
class RunsPage:
    """Runs that pass the filter."""

    runs: Sequence[Run]
    next: str | None
    wanted: RunFilter
    environments: Sequence[str]
    kinds: Sequence[str] = tuple(RunKind)
    statuses: Sequence[str] = tuple(RunStatus)


@router.get("/runs", response_class=HTMLResponse)
def list_runs(request: Request, session: SessionDep, _: Viewer, wanted: Annotated[RunFilter, Query()]) -> HTMLResponse:
    return page(request, TEMPLATE, _page(session, wanted), block="run_table")


@router.get("/runs/events", response_class=EventSourceResponse)
async def runs_events(
    request: Request, _: Viewer, wanted: Annotated[RunFilter, Query()]
) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        return {"run_table": render_block(request, TEMPLATE, "run_table", _page(session, wanted))}

    async for event in live(request, (RUNS,), render):
        yield event


def _page(session: Session, wanted: RunFilter) -> RunsPage:
    found = queries.runs(session, wanted)
    return RunsPage(found.items, found.next, wanted, queries.environment_names(session))
