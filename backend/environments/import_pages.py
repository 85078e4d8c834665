"""Pages of imports: the list, the form for a new one, and the report with the proposed block."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import topic_of
from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.packages import PackageInvalid
from backend.environments import imports as importing
from backend.environments.import_sources import MAX_UPLOAD_BYTES, read_zip
from backend.environments.imports import KINDS, ImportOptions, PromptPreview
from backend.environments.schemas import BlockForm, ImportForm
from backend.environments.tables import EnvironmentImport
from backend.errors import AppError, InvalidInput
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.identity import Actor
from backend.web.page import page, see_other, wants_block
from backend.web.streams import live_blocks

router = APIRouter()


@dataclass(frozen=True, slots=True)
class ImportPage:
    row: EnvironmentImport
    report: ImportReport
    preview: PromptPreview
    kind: str
    name: str
    message: str = ""

    @property
    def is_over(self) -> bool:
        return self.row.status.is_over


@router.get("/imports", response_class=HTMLResponse)
def list_imports(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "environments/imports.html", {"imports": importing.recent_imports(session), "kinds": KINDS})


@router.get("/imports/new", response_class=HTMLResponse)
def new_import(request: Request, _: Author) -> HTMLResponse:
    return page(request, "environments/import_new.html", {"form": ImportForm(), "errors": {}, "message": ""})


@router.post("/imports", response_class=HTMLResponse, max_body_size=MAX_UPLOAD_BYTES + 2**20)
def start_import(
    request: Request,
    session: SessionDep,
    actor: Author,
    form: Annotated[ImportForm, Depends(read_form(ImportForm))],
) -> Response:
    try:
        row = _start(session, actor, form)
    except AppError as error:
        if wants_block(request):
            raise
        fields = error.fields if isinstance(error, InvalidInput) else {}
        context = {"form": form, "errors": fields, "message": "" if fields else error.message}
        return page(request, "environments/import_new.html", context, status=error.status)
    finally:
        if form.package is not None:
            form.package.file.close()
    return see_other(f"/imports/{row.id}", "The package is being inspected.")


def _start(session: Session, actor: Actor, form: ImportForm) -> EnvironmentImport:
    variables = {}
    for line in filter(None, map(str.strip, form.variables.splitlines())):
        name, has_value, value = line.partition("=")
        if not has_value or not name.strip():
            raise InvalidInput(fields={"variables": "Write one NAME=value per line."})
        variables[name.strip()] = value.strip()
    requires = [line.strip() for line in form.requires.splitlines() if line.strip()]
    options = ImportOptions(form.name.strip(), form.path.strip(), requires, variables)
    if form.kind == "git":
        return importing.import_repository(session, actor, form.url, form.reference.strip(), options)
    if form.kind == "remote":
        return importing.import_server(session, actor, form.url, options)
    if form.package is None:
        raise InvalidInput(fields={"package": "Choose the package's zip."})
    filename = form.package.filename or "package.zip"
    try:
        files, folder = read_zip(form.package.file.read(), filename)
    except PackageInvalid as error:
        raise InvalidInput(fields={"package": str(error)}) from error
    source = f"upload {filename}"
    return importing.import_files(session, actor, files, folder=folder, source=source, options=options)


@router.get("/imports/{import_id}", response_class=HTMLResponse)
def show_import(request: Request, session: SessionDep, _: Viewer, import_id: uuid.UUID) -> HTMLResponse:
    return page(request, "environments/import.html", _page(session, import_id))


@router.get("/imports/{import_id}/events", response_class=EventSourceResponse)
async def import_events(request: Request, _: Viewer, import_id: uuid.UUID) -> AsyncIterator[ServerSentEvent]:
    """Stream the report while the package is inspected."""
    read = partial(_page, import_id=import_id)
    blocks = ("import_report", "import_preview")
    async for event in live_blocks(request, (topic_of("import", import_id),), "environments/import.html", blocks, read):
        yield event


@router.post("/imports/{import_id}/block", response_class=HTMLResponse)
def save_block(
    request: Request,
    session: SessionDep,
    actor: Author,
    import_id: uuid.UUID,
    form: Annotated[BlockForm, Depends(read_form(BlockForm))],
) -> Response:
    """Save the block and show its preview, or create the environment with it."""
    row = importing.get_import(session, import_id, with_files=True)
    importing.save_block(session, actor, row, form.block)
    if form.then == "preview":
        return see_other(f"/imports/{import_id}#import-preview", "The block is saved.")
    try:
        environment = importing.create_from_import(session, actor, row, form.name)
    except AppError as error:
        if wants_block(request):
            raise
        return page(request, "environments/import.html", _page(session, import_id, error.message), status=error.status)
    return see_other(f"/environments/{environment.name}/edit", f"{environment.name} begins as a draft.")


def _page(session: Session, import_id: uuid.UUID, message: str = "") -> ImportPage:
    row = importing.get_import(session, import_id)
    report = ImportReport.model_validate(row.report)
    return ImportPage(row, report, importing.preview(row), KINDS.get(row.kind, row.kind), row.name, message)
