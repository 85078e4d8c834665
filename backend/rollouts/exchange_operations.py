"""Export, import and training data for scripts."""

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from backend.rollouts import downloads, imports
from backend.rollouts.exchange_schemas import ExportQuery, ImportForm, MarkForm, SftDownload, SftFilter
from backend.runs import queries as run_queries
from backend.runs.responses import RunDetailResponse
from backend.training import sft_data
from backend.web.dependencies import Author, SessionDep, Trainer, Viewer
from backend.web.form_data import read_form

router = APIRouter(prefix="/api/v1")


@router.get("/runs/{run_id}/export", tags=["rollouts"], response_class=StreamingResponse)
def export_rollouts(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[ExportQuery, Query()]
) -> StreamingResponse:
    """A run's rollouts as a file: JSONL, Parquet, a Hugging Face folder, verifiers 0.3 or 0.4, Inspect."""
    return downloads.export(request, session, run_id, wanted)


@router.post(
    "/rollouts/import",
    status_code=201,
    tags=["rollouts"],
    max_body_size=imports.MAX_UPLOAD_BYTES,
)
def import_rollouts(
    session: SessionDep, actor: Author, form: Annotated[ImportForm, Depends(read_form(ImportForm))]
) -> RunDetailResponse:
    """A file as multipart form (`file`, `environment`, `policy`, `name`, `split`, `tasks`). The run is the import's
    progress and result: it completes, or fails with the line that is wrong and nothing stored."""
    try:
        run = imports.start_import(session, actor, form)
    finally:
        form.file.file.close()
    return RunDetailResponse.of(run_queries.get_run(session, run.id))


@router.delete("/runs/{run_id}", status_code=204, tags=["runs"])
def delete_run(run_id: uuid.UUID, session: SessionDep, actor: Author) -> None:
    """Take an imported run away with all its rollouts. What was played here is kept."""
    imports.delete_imported(session, actor, run_queries.get_run(session, run_id))


class SftAnswer(BaseModel):
    """What a filter gives as training data."""

    conversations: int
    repeats: int
    """Left out, because they came already."""
    near_repeats: int
    """Kept, though they differ from another in numbers, case and punctuation alone."""
    heldout: int
    """Left out, because their tasks are held out."""
    tokens: int
    """About: four characters each."""
    tokens_written: int
    is_whole: bool
    """False: only the first 20,000 were looked at."""
    samples: list[dict[str, Any]]


@router.get("/sft", tags=["training"])
def preview_sft(session: SessionDep, _: Viewer, wanted: Annotated[SftFilter, Query()]) -> SftAnswer:
    """How many conversations, repeats and tokens there are, with samples."""
    return SftAnswer.model_validate(sft_data.preview(session, wanted), from_attributes=True)


@router.get("/sft/file", tags=["training"], response_class=StreamingResponse)
def download_sft(
    request: Request, session: SessionDep, _: Viewer, wanted: Annotated[SftDownload, Query()]
) -> StreamingResponse:
    """Chat JSONL, or a folder that `datasets` reads, zipped."""
    return downloads.sft(request, session, wanted, wanted.format)


class Marked(BaseModel):
    """How many rollouts changed."""

    changed: int


@router.post("/sft/demonstrations", tags=["training"])
def mark_demonstrations(session: SessionDep, actor: Trainer, request: MarkForm) -> Marked:
    """The SFT warm-up here may learn from these (`is_wanted` false: no longer). Never from held-out tasks."""
    return Marked(changed=sft_data.mark_demonstrations(session, actor, request, is_wanted=request.is_wanted))
