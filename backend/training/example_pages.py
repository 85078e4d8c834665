"""Pages of uploaded conversations, and the block of the launch form that previews training examples."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.domain.training.examples import Conversation
from backend.errors import AppError, InvalidInput
from backend.runs.tables import Run
from backend.training import example_files as files
from backend.training import example_preview as view
from backend.training.example_files import MAX_UPLOAD_BYTES
from backend.training.example_preview import ExamplePreview
from backend.training.schemas import TrainingRequest, UploadExamples, read_training_form, read_training_query
from backend.training.tables import ExampleFile
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other, wants_block
from backend.web.paging import After
from backend.web.transcripts import Entry, bounded, transcript_of

router = APIRouter(prefix="/training/examples")
UNLEARNED = "No loss on this reply."


@dataclass(frozen=True, slots=True)
class FilesPage:
    """Uploaded files, and the form to upload another one."""

    files: Sequence[ExampleFile]
    next: str | None
    name: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    deleted: ExampleFile | None = None
    """The file that was just deleted and can be restored."""
    most_bytes: int = MAX_UPLOAD_BYTES


@dataclass(frozen=True, slots=True)
class PreviewPage:
    """The training examples with these settings; None if the settings are incomplete."""

    found: ExamplePreview | None
    transcripts: Mapping[str, Sequence[tuple[Conversation, Sequence[Entry]]]]
    """By source."""
    hint: str = ""


@router.get("", response_class=HTMLResponse)
def list_files(
    request: Request, session: SessionDep, _: Viewer, after: After = None, deleted: uuid.UUID | None = None
) -> HTMLResponse:
    found = files.list_example_files(session, after=after)
    gone = session.get(ExampleFile, deleted) if deleted else None
    can_undo = gone is not None and files.deleted_at(gone) is not None
    return page(
        request, "training/examples.html", FilesPage(found.items, found.next, deleted=gone if can_undo else None)
    )


@router.post("", response_class=HTMLResponse, max_body_size=MAX_UPLOAD_BYTES + 2**20)
def add_file(
    request: Request,
    session: SessionDep,
    actor: Trainer,
    form: Annotated[UploadExamples, Depends(read_form(UploadExamples))],
) -> Response:
    try:
        row = files.add_example_file(session, actor, form.file.file, form.file.filename or "", form.name)
    except AppError as error:
        if wants_block(request):
            raise
        found = files.list_example_files(session)
        fields = error.fields if isinstance(error, InvalidInput) else {}
        message = "" if fields else error.message
        context = FilesPage(found.items, found.next, form.name or "", fields, message)
        return page(request, "training/examples.html", context, status=error.status)
    finally:
        form.file.file.close()
    repeats = int(row.statistics["repeats"])
    without = f" without {repeats:,} duplicates" if repeats else ""
    return see_other(f"/training/examples/{row.id}", f"Uploaded {row.conversations:,} conversations{without}.")


@router.get("/preview", response_class=HTMLResponse)
def preview_query(
    request: Request,
    session: SessionDep,
    _: Viewer,
    query: Annotated[TrainingRequest, Depends(read_training_query)],
) -> HTMLResponse:
    """Only the block for htmx, else a complete page."""
    return page(request, "training/examples_preview.html", _preview(session, query), block="lessons_preview")


def _preview(session: SessionDep, query: TrainingRequest) -> PreviewPage:
    try:
        found = view.preview_examples(session, query)
    except InvalidInput as error:
        return PreviewPage(None, {}, " ".join(error.fields.values()) or error.message)
    shown = {source.source: [(each, _entries(each)) for each in source.found.examples] for source in found.sources}
    return PreviewPage(found, shown)


@router.post("/preview", response_class=HTMLResponse)
def preview_form(
    request: Request,
    session: SessionDep,
    _: Viewer,
    query: Annotated[TrainingRequest, Depends(read_training_form)],
) -> HTMLResponse:
    """The preview for the settings in the launch form."""
    return page(request, "training/examples_preview.html", _preview(session, query), block="lessons_preview")


@router.get("/{file_id}", response_class=HTMLResponse)
def show_file(request: Request, file_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    row = files.get_example_file(session, file_id)
    context = {
        "file": row,
        "statistics": row.statistics,
        "transcripts": [_entries(each) for each in view.first_conversations(row)],
        "runs": session.scalars(files.runs_with(row).order_by(Run.id.desc()).limit(20)).all(),
        "is_deleted": files.deleted_at(row) is not None,
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
