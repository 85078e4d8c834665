"""Pages of training data: uploaded conversations, a preview of training examples, and SFT data from rollouts."""

import uuid
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from sqlalchemy import select

from backend.domain.training.examples import Conversation
from backend.errors import InvalidInput
from backend.operations.routes import stream_download
from backend.runs.tables import Run
from backend.training import example_files as files
from backend.training import example_preview as view
from backend.training import sft_data
from backend.training.forms import UploadExamples, read_training_request
from backend.training.schemas import (
    DownloadSft,
    MarkDemonstrations,
    SftFilter,
    SftPreview,
    TrainingRequest,
)
from backend.training.tables import ExampleFile
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.paging import After
from backend.web.transcripts import Entry, bounded, transcript_of

router = APIRouter()
UNLEARNED = "No loss on this reply."


@router.get("/training/examples", response_class=HTMLResponse)
def list_files(
    request: Request, session: SessionDep, _: Viewer, after: After = None, deleted: uuid.UUID | None = None
) -> HTMLResponse:
    """Uploaded files, and the form to upload another one. `deleted`: the file that was just deleted."""
    found = files.list_example_files(session, after=after)
    gone = session.get(ExampleFile, deleted) if deleted else None
    context = {
        "files": found.items,
        "next": found.next,
        "deleted": gone if gone is not None and gone.deleted_at is not None else None,
        "most_bytes": files.MAX_UPLOAD_BYTES,
    }
    return page(request, "training/examples.html", context)


@router.post("/training/examples", response_class=HTMLResponse, max_body_size=files.MAX_UPLOAD_BYTES + 2**20)
def add_file(
    session: SessionDep, actor: Trainer, form: Annotated[UploadExamples, Depends(read_form(UploadExamples))]
) -> Response:
    with form.file.file as upload:
        row = files.add_example_file(session, actor, upload, form.file.filename or "", form.name)
    repeats = int(row.statistics["repeats"])
    without = f" without {repeats:,} duplicates" if repeats else ""
    return see_other(f"/training/examples/{row.id}", f"Uploaded {row.conversations:,} conversations{without}.")


@router.api_route("/training/examples/preview", methods=["GET", "POST"], response_class=HTMLResponse)
def preview_examples(
    request: Request, session: SessionDep, _: Viewer, sent: Annotated[TrainingRequest, Depends(read_training_request)]
) -> HTMLResponse:
    """The training examples with the settings of the address or the launch form; a hint if they are incomplete."""
    context: dict[str, object] = {"found": None, "transcripts": {}, "hint": ""}
    try:
        found = view.preview_examples(session, sent)
        shown = {source.source: [(each, _entries(each)) for each in source.found.examples] for source in found.sources}
        context |= {"found": found, "transcripts": shown}
    except InvalidInput as error:
        context["hint"] = " ".join(error.fields.values()) or error.message
    return page(request, "training/examples_preview.html", context, block="lessons_preview")


@router.api_route("/training/pairs/preview", methods=["GET", "POST"], response_class=HTMLResponse)
def preview_pairs(
    request: Request, session: SessionDep, _: Viewer, sent: Annotated[TrainingRequest, Depends(read_training_request)]
) -> HTMLResponse:
    """The pairs of preference training with the settings of the address or the launch form."""
    context: dict[str, object] = {"found": None, "shown": [], "hint": ""}
    try:
        found = view.preview_pairs(session, sent)
        shown = [(each, _whole(each.chosen), _whole(each.rejected)) for each in found.shown]
        context |= {"found": found, "shown": shown}
    except InvalidInput as error:
        context["hint"] = " ".join(error.fields.values()) or error.message
    return page(request, "training/pairs_preview.html", context, block="pairs_preview")


@router.get("/training/examples/{file_id}", response_class=HTMLResponse)
def show_file(request: Request, file_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    row = files.get_example_file(session, file_id)
    runs = select(Run).where(Run.configuration["sft"]["file"].astext == str(row.id)).order_by(Run.id.desc()).limit(20)
    context = {
        "file": row,
        "statistics": row.statistics,
        "transcripts": [_entries(each) for each in view.first_conversations(row)],
        "runs": session.scalars(runs).all(),
        "is_deleted": row.deleted_at is not None,
    }
    return page(request, "training/example_file.html", context)


def _entries(conversation: Conversation) -> list[Entry]:
    """The transcript, bounded for a page, with a note at replies that carry no loss."""
    learned = iter(conversation.learned)
    shown = [
        entry
        if entry.role != "assistant"
        else replace(entry, turn=None, note=None if next(learned, False) else UNLEARNED)
        for entry in transcript_of(conversation.messages, (), ())
    ]
    return bounded(shown)[0]


def _whole(conversation: Conversation) -> list[Entry]:
    """The transcript of half a pair, whose replies all count."""
    return _entries(replace(conversation, learned=(True,) * len(conversation.learned)))


@router.get("/data/sft", response_class=HTMLResponse)
def show_sft(request: Request, session: SessionDep, _: Viewer, wanted: Annotated[SftFilter, Query()]) -> HTMLResponse:
    runs = sft_data.runs_of(session, wanted) if wanted.run else []
    found: SftPreview | None = None
    errors: dict[str, str] = {}
    if runs:
        try:
            found = sft_data.preview(session, wanted)
        except InvalidInput as error:
            errors = error.fields
    context = {"wanted": wanted, "runs": runs, "found": found, "errors": errors}
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
    return see_other(f"/data/sft?{urlencode(form.fields())}", f"Rollouts {notice}: {changed:,}.")
