"""Pages: export of a run, import of a file, training data."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from sqlalchemy.orm import Session

from backend.environments.tables import EnvironmentVersion
from backend.errors import AppError, InvalidInput
from backend.rollouts import downloads, export_queries, imports
from backend.rollouts.exchange_schemas import ExportQuery, ImportForm, MarkForm, SftDownload, SftFilter
from backend.rollouts.export import KINDS
from backend.runs import queries as run_queries
from backend.runs.tables import Run
from backend.training import sft_data
from backend.web.dependencies import Author, SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other, wants_block

router = APIRouter()


@dataclass(frozen=True, slots=True)
class ExportPage:
    """The formats, and how many rollouts pass the filter."""

    run: Run
    wanted: ExportQuery
    choices: Sequence[tuple[str, str, str]]
    """Format, its name, a note."""
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
    """The filter and what it gives."""

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
    return page(request, "rollouts/import.html", ImportPage(run_queries.versions(session), version_id))


@router.post("/runs/import", response_class=HTMLResponse, max_body_size=imports.MAX_UPLOAD_BYTES)
def start_import(
    request: Request,
    session: SessionDep,
    actor: Author,
    form: Annotated[ImportForm, Depends(read_form(ImportForm))],
) -> Response:
    try:
        run = imports.start_import(session, actor, form)
    except AppError as error:
        if wants_block(request):
            raise
        fields = error.fields if isinstance(error, InvalidInput) else {}
        context = ImportPage(run_queries.versions(session), form.version_id, fields, "" if fields else error.message)
        return page(request, "rollouts/import.html", context, status=error.status)
    finally:
        form.file.file.close()
    return see_other(f"/runs/{run.id}", "The file is being imported.")


@router.get("/runs/{run_id}/export", response_class=HTMLResponse)
def choose_export(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[ExportQuery, Query()]
) -> HTMLResponse:
    run = run_queries.get_run(session, run_id)
    total = export_queries.count_rollouts(session, run)
    try:
        count, error = export_queries.count_rollouts(session, run, wanted.where), ""
    except InvalidInput as wrong:
        count, error = 0, wrong.fields.get("where", wrong.message)
    choices = [(str(key), kind.label, kind.note) for key, kind in KINDS.items()]
    return page(request, "rollouts/export.html", ExportPage(run, wanted, choices, count, total, error))


@router.get("/runs/{run_id}/export/file", response_class=StreamingResponse)
def download_export(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[ExportQuery, Query()]
) -> StreamingResponse:
    return downloads.export(request, session, run_id, wanted)


@router.post("/runs/{run_id}/delete", response_class=HTMLResponse)
def delete_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    run = run_queries.get_run(session, run_id)
    imports.delete_imported(session, actor, run)
    return see_other("/runs", f"{run.name} is deleted.")


@router.get("/data/sft", response_class=HTMLResponse)
def show_sft(request: Request, session: SessionDep, _: Viewer, wanted: Annotated[SftFilter, Query()]) -> HTMLResponse:
    return page(request, "training/sft_data.html", _sft(session, wanted))


def _sft(session: Session, wanted: SftFilter) -> SftPage:
    runs = sft_data.runs_of(session, wanted)
    found: sft_data.Preview | None = None
    errors: dict[str, str] = {}
    if runs:
        try:
            found = sft_data.preview(session, wanted)
        except InvalidInput as error:
            errors = error.fields
    return SftPage(wanted, runs, found, wanted.query(), wanted.fields(), wanted.command(), errors)


@router.get("/data/sft/file", response_class=StreamingResponse)
def download_sft(
    request: Request,
    session: SessionDep,
    _: Viewer,
    wanted: Annotated[SftDownload, Query()],
) -> StreamingResponse:
    return downloads.sft(request, session, wanted, wanted.format)


@router.post("/data/sft/demonstrations", response_class=HTMLResponse)
def mark_demonstrations(
    session: SessionDep, actor: Trainer, form: Annotated[MarkForm, Depends(read_form(MarkForm))]
) -> Response:
    wanted = SftFilter.model_validate(form.model_dump(exclude={"is_wanted"}))
    changed = sft_data.mark_demonstrations(session, actor, wanted, is_wanted=form.is_wanted)
    what = "are marked: the SFT warm-up may learn from them" if form.is_wanted else "are no longer marked"
    return see_other(f"/data/sft?{wanted.query()}", f"{changed:,} episodes {what}.")
