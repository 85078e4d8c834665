"""Pages: export of a run, import of a file, training data from rollouts."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError, InvalidInput
from backend.operations.routes import stream_download
from backend.rollouts import export, imports
from backend.rollouts.schemas import DownloadSft, ExportRollouts, ImportRollouts, MarkDemonstrations, SftFilter
from backend.runs.queries import get_run, versions
from backend.runs.tables import Run
from backend.training import sft_data
from backend.web.dependencies import Author, SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other, wants_block

router = APIRouter()


@dataclass(frozen=True, slots=True)
class ExportPage:
    """The formats, and the number of rollouts that pass the filter."""

    run: Run
    form: ExportRollouts
    choices: Sequence[tuple[str, str, str]]
    """Format, its label, a note."""
    count: int
    total: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class ImportPage:
    versions: Sequence[EnvironmentVersion]
    version_id: uuid.UUID | None
    errors: Mapping[str, str] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True)
class SftPage:
    """The filter and the conversations that it selects."""

    wanted: SftFilter
    runs: Sequence[Run]
    found: sft_data.Preview | None
    query: str
    fields: Sequence[tuple[str, str]]
    """The filter as a form's fields."""
    command: str
    errors: Mapping[str, str] = field(default_factory=dict)


@router.get("/runs/import", response_class=HTMLResponse)
def new_import(request: Request, session: SessionDep, _: Author, version_id: uuid.UUID | None = None) -> HTMLResponse:
    return page(request, "rollouts/import.html", ImportPage(versions(session), version_id))


@router.post("/runs/import", response_class=HTMLResponse, max_body_size=imports.MAX_UPLOAD_BYTES)
def start_import(
    request: Request,
    session: SessionDep,
    actor: Author,
    form: Annotated[ImportRollouts, Depends(read_form(ImportRollouts))],
) -> Response:
    try:
        run = imports.start_import(session, actor, form)
    except AppError as error:
        if wants_block(request):
            raise
        fields = error.fields if isinstance(error, InvalidInput) else {}
        context = ImportPage(versions(session), form.version_id, fields, "" if fields else error.message)
        return page(request, "rollouts/import.html", context, status=error.status)
    finally:
        form.file.file.close()
    return see_other(f"/runs/{run.id}", "The file is being imported.")


@router.get("/runs/{run_id}/export", response_class=HTMLResponse)
def choose_export(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, form: Annotated[ExportRollouts, Query()]
) -> HTMLResponse:
    run = get_run(session, run_id)
    total = export.count_rollouts(session, run)
    try:
        count, error = export.count_rollouts(session, run, form.where), ""
    except InvalidInput as wrong:
        count, error = 0, wrong.fields.get("where", wrong.message)
    choices = [(str(key), file_type.label, file_type.note) for key, file_type in export.FILE_TYPES.items()]
    return page(request, "rollouts/export.html", ExportPage(run, form, choices, count, total, error))


@router.get("/runs/{run_id}/export/file", response_class=StreamingResponse)
def download_export(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, form: Annotated[ExportRollouts, Query()]
) -> StreamingResponse:
    run = get_run(session, run_id)
    return stream_download(request, export.export_rollouts(session, run, form.format, form.where))


@router.get("/data/sft", response_class=HTMLResponse)
def show_sft(request: Request, session: SessionDep, _: Viewer, wanted: Annotated[SftFilter, Query()]) -> HTMLResponse:
    runs = sft_data.runs_of(session, wanted)
    found: sft_data.Preview | None = None
    errors: dict[str, str] = {}
    if runs:
        try:
            found = sft_data.preview(session, wanted)
        except InvalidInput as error:
            errors = error.fields
    context = SftPage(wanted, runs, found, wanted.query(), wanted.fields(), wanted.command(), errors)
    return page(request, "training/sft_data.html", context)


@router.get("/data/sft/file", response_class=StreamingResponse)
def download_sft(
    request: Request, session: SessionDep, _: Viewer, wanted: Annotated[DownloadSft, Query()]
) -> StreamingResponse:
    return stream_download(request, sft_data.download(session, wanted, wanted.format))


@router.post("/data/sft/demonstrations", response_class=HTMLResponse)
def mark_demonstrations(
    session: SessionDep, actor: Trainer, form: Annotated[MarkDemonstrations, Depends(read_form(MarkDemonstrations))]
) -> Response:
    changed = sft_data.mark_demonstrations(session, actor, form, is_wanted=form.is_wanted)
    notice = "marked as demonstrations for the SFT warm-up" if form.is_wanted else "no longer marked"
    return see_other(f"/data/sft?{form.query()}", f"Rollouts {notice}: {changed:,}.")
