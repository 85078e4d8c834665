"""Pages of exports: choosing a form, then progress, passport, files and the way to the Hub."""

import uuid
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.checkpoints import downloads, hub, queries
from backend.checkpoints.export_schemas import ExportPageForm, HubQuery, HubRequest
from backend.checkpoints.tables import Checkpoint, Export
from backend.domain.checkpoints.exports import TITLES, ExportOptions, OfferedForm
from backend.domain.vocabulary import ExportForm, ExportStatus
from backend.errors import InvalidInput
from backend.training import service
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import read_form, validate
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()


@dataclass(frozen=True, slots=True)
class NewExportPage:
    """The forms that a checkpoint can be handed out in, and what was made of it before."""

    checkpoint: Checkpoint
    forms: Sequence[OfferedForm]
    earlier: Sequence[Export]
    titles: Mapping[ExportForm, str]


@router.get("/exports/new", response_class=HTMLResponse)
def new_export(request: Request, checkpoint_id: uuid.UUID, session: SessionDep, _: Trainer) -> HTMLResponse:
    checkpoint = queries.get_checkpoint(session, checkpoint_id)
    earlier = queries.exports(session, checkpoint_id=checkpoint_id, limit=20).items
    context = NewExportPage(checkpoint, service.forms_of(session, checkpoint), earlier, TITLES)
    return page(request, "checkpoints/new_export.html", context)


@router.post("/exports", response_class=HTMLResponse)
def start_export(
    session: SessionDep, actor: Trainer, form: Annotated[ExportPageForm, Depends(read_form(ExportPageForm))]
) -> Response:
    export = service.start_export(session, actor, queries.get_checkpoint(session, form.checkpoint_id), form)
    return see_other(f"/exports/{export.id}")


@dataclass(frozen=True, slots=True)
class ExportPage:
    """One export: its progress, then its passport, files and model card."""

    export: Export
    options: ExportOptions
    title: str
    """Of its form."""
    plan: hub.HubPlan | None = None
    """What an upload would send, where that was asked."""
    problem: str = ""
    """Why that cannot be said."""

    @property
    def is_over(self) -> bool:
        """Nothing is exported or sent any more."""
        is_made = self.export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING}
        return is_made and (self.options.hub is None or self.options.hub.is_over)


@router.get("/exports/{export_id}", response_class=HTMLResponse)
def show_export(
    request: Request,
    export_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    repository: str = "",
    is_private: bool = False,
) -> HTMLResponse:
    """With a repository: what an upload there would send."""
    export = queries.get_export(session, export_id)
    plan, problem = None, ""
    if repository:
        try:
            plan = hub.plan_upload(export, validate(HubQuery, {"repository": repository, "is_private": is_private}))
        except InvalidInput:
            problem = f"{repository} is no repository: write owner/name."
    return page(request, "checkpoints/export.html", _export_page(export, plan, problem))


def _export_page(export: Export, plan: hub.HubPlan | None = None, problem: str = "") -> ExportPage:
    return ExportPage(export, ExportOptions.model_validate(export.options), TITLES[export.form], plan, problem)


@router.post("/exports/{export_id}/hub", response_class=HTMLResponse)
def upload_export(
    export_id: uuid.UUID,
    session: SessionDep,
    actor: Trainer,
    form: Annotated[HubRequest, Depends(read_form(HubRequest))],
) -> Response:
    hub.start_upload(session, actor, queries.get_export(session, export_id), form)
    return see_other(f"/exports/{export_id}", "The upload is queued.")


@router.get("/exports/{export_id}/events", response_class=EventSourceResponse)
async def export_events(request: Request, export_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> ExportPage:
        return _export_page(queries.get_export(session, export_id))

    async for event in live_blocks(
        request, (f"export:{export_id}",), "checkpoints/export.html", ["export_state"], read
    ):
        yield event


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    return downloads.export_zip(queries.get_export(session, export_id))
