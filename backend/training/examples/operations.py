"""What warm-ups learn from, for scripts: uploaded files, and a look before a run."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from backend.training.examples import files, view
from backend.training.examples.schemas import LessonFileForm
from backend.training.schemas import TrainingRequest
from backend.training.tables import LessonFile
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.paging import After, Limit, Page

router = APIRouter(prefix="/api/v1/training/lessons", tags=["training"])


class LessonFileOut(BaseModel):
    """Uploaded conversations."""

    id: uuid.UUID
    name: str
    conversations: int
    size_bytes: int
    statistics: dict[str, Any]
    created_at: datetime
    deleted_at: datetime | None
    """It is no longer offered, and can be taken back for a week."""


class LessonExamples(LessonFileOut):
    """The same with the first three conversations."""

    examples: list[dict[str, Any]]


@router.post("/preview")
def preview_lessons(request: TrainingRequest, session: SessionDep, _: Viewer) -> dict[str, Any]:
    """What a training run with these choices would imitate: numbers, lengths, rewards, tasks by level, examples."""
    return view.preview_of(session, request).as_json()


@router.post("", status_code=201, max_body_size=files.MAX_UPLOAD_BYTES + 2**20)
def add_lesson_file(
    session: SessionDep, actor: Trainer, form: Annotated[LessonFileForm, Depends(read_form(LessonFileForm))]
) -> LessonFileOut:
    """A JSONL as multipart form (`file`, `name`). A line that is wrong is named, and nothing is stored."""
    try:
        row = files.add_lesson_file(session, actor, form.file.file, form.file.filename or "", form.name)
    finally:
        form.file.file.close()
    return _out(row)


@router.get("")
def list_lesson_files(session: SessionDep, _: Viewer, after: After = None, limit: Limit = 50) -> Page[LessonFileOut]:
    """Newest first."""
    found = files.lesson_files(session, after=after, limit=limit)
    return Page(items=[_out(row) for row in found.items], next=found.next)


@router.get("/{file_id}")
def get_lesson_file(file_id: uuid.UUID, session: SessionDep, _: Viewer) -> LessonExamples:
    row = files.get_lesson_file(session, file_id)
    examples = [{"messages": each.messages, "learned": each.learned} for each in view.examples_of(row)]
    return LessonExamples(**_out(row).model_dump(), examples=examples)


@router.get("/{file_id}/file", response_class=StreamingResponse)
def download_lesson_file(file_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    """The JSONL as it was checked: each conversation once, tool calls as text."""
    return view.download_of(files.get_lesson_file(session, file_id))


@router.delete("/{file_id}", status_code=204)
def delete_lesson_file(file_id: uuid.UUID, session: SessionDep, actor: Trainer) -> None:
    """It is no longer offered; for a week `restore` takes it back."""
    files.delete_lesson_file(session, actor, files.get_lesson_file(session, file_id))


@router.post("/{file_id}/restore")
def restore_lesson_file(file_id: uuid.UUID, session: SessionDep, actor: Trainer) -> LessonFileOut:
    """Take a deleted file back."""
    row = files.get_lesson_file(session, file_id)
    files.restore_lesson_file(session, actor, row)
    return _out(row)


def _out(row: LessonFile) -> LessonFileOut:
    hidden = {"hash", "deleted_at"}
    return LessonFileOut(
        id=row.id,
        name=row.name,
        conversations=row.conversations,
        size_bytes=row.size_bytes,
        statistics={name: value for name, value in row.statistics.items() if name not in hidden},
        created_at=row.created_at,
        deleted_at=files.deleted_at(row),
    )
