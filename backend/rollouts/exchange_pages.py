"""Pages: export of a run, import of a file."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from backend.errors import InvalidInput
from backend.operations.routes import stream_download
from backend.rollouts import export, imports
from backend.rollouts.filters import select_rollouts
from backend.rollouts.queries import count_rollouts
from backend.rollouts.schemas import ExportRollouts, ImportRollouts
from backend.rollouts.scope import scope_of
from backend.runs.queries import get_run, versions
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()


@router.get("/runs/import", response_class=HTMLResponse)
def new_import(request: Request, session: SessionDep, _: Author, version_id: uuid.UUID | None = None) -> HTMLResponse:
    return page(request, "rollouts/import.html", {"versions": versions(session), "version_id": version_id})


@router.post("/runs/import", response_class=HTMLResponse, max_body_size=imports.MAX_UPLOAD_BYTES)
def start_import(
    session: SessionDep, actor: Author, form: Annotated[ImportRollouts, Depends(read_form(ImportRollouts))]
) -> Response:
    try:
        run = imports.start_import(session, actor, form)
    finally:
        form.file.file.close()
    return see_other(f"/runs/{run.id}", "The file is being imported.")


@router.get("/runs/{run_id}/export", response_class=HTMLResponse)
def choose_export(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, form: Annotated[ExportRollouts, Query()]
) -> HTMLResponse:
    run = get_run(session, run_id)
    scope = scope_of(session, run)
    total = count_rollouts(session, select_rollouts(scope, ""))
    try:
        count, error = count_rollouts(session, select_rollouts(scope, form.where)), ""
    except InvalidInput as wrong:
        count, error = 0, wrong.fields.get("where", wrong.message)
    choices = [(str(key), label, note) for key, (label, note, *_) in export.FILE_TYPES.items()]
    context = {"run": run, "form": form, "choices": choices, "count": count, "total": total, "error": error}
    return page(request, "rollouts/export.html", context)


@router.get("/runs/{run_id}/export/file", response_class=StreamingResponse)
def download_export(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, form: Annotated[ExportRollouts, Query()]
) -> StreamingResponse:
    run = get_run(session, run_id)
    return stream_download(request, export.export_rollouts(session, run, form.format, form.where))
