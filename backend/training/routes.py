"""Pages of exports."""

import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.db.models import Export
from backend.domain.vocabulary import ExportStatus
from backend.training import downloads, queries, service
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.pages import page, render_block, see_other
from backend.web.streams import END, live

router = APIRouter()


@router.post("/exports", response_class=HTMLResponse)
def start_export(session: SessionDep, actor: Trainer, checkpoint_id: Annotated[uuid.UUID, Form()]) -> Response:
    export = service.start_export(session, actor, queries.get_checkpoint(session, checkpoint_id))
    return see_other(f"/exports/{export.id}")


@dataclass(frozen=True, slots=True)
class ExportPage:
    """One export: its progress, then its passport and model card."""

    export: Export


@router.get("/exports/{export_id}", response_class=HTMLResponse)
def show_export(request: Request, export_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "training/export.html", ExportPage(queries.get_export(session, export_id)))


@router.get("/exports/{export_id}/events", response_class=EventSourceResponse)
async def export_events(request: Request, export_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def render(session: Session) -> dict[str, str]:
        export = queries.get_export(session, export_id)
        blocks = {"export_state": render_block(request, "training/export.html", "export_state", ExportPage(export))}
        if export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING}:
            blocks[END] = ""
        return blocks

    async for event in live(request, (f"export:{export_id}",), render):
        yield event


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    return downloads.export_zip(queries.get_export(session, export_id))
