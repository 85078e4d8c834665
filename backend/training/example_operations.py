"""Operations on training examples: uploaded conversations, and a preview of the examples of a warm-up."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.domain.vocabulary import Role
from backend.operations.declaration import operation, reference
from backend.operations.schemas import Download
from backend.training import example_files, example_preview
from backend.training.schemas import (
    ExampleFileDetail,
    ExampleFileResponse,
    ListExampleFiles,
    TrainingRequest,
    UploadExamples,
)
from backend.training.tables import ExampleFile
from backend.web.identity import Actor
from backend.web.paging import Page


@reference(ExampleFile, "Id of a file, the last characters of it, or its name.")
def find_example_file(session: Session, text: str) -> ExampleFile:
    return example_files.find_example_file(session, text)


@operation("POST /training/examples/preview", role=Role.VIEWER, noun="examples", audited=False)
def preview_examples(session: Session, actor: Actor, request: TrainingRequest) -> dict[str, object]:
    """Preview what the SFT warm-up of a training run would learn from: numbers, lengths, rewards and examples."""
    return example_preview.preview_examples(session, request).as_json()


@operation(
    "POST /training/examples",
    role=Role.TRAINER,
    noun="examples",
    command="data examples add",
    status=201,
    audited=False,
    max_body_size=example_files.MAX_UPLOAD_BYTES + 2**20,
)
def add_examples(session: Session, actor: Actor, request: UploadExamples) -> ExampleFileResponse:
    """Upload conversations: {"messages": […]} or {"prompt": …, "completion": …}, as TRL and OpenAI write them.

    If a line is invalid, the error names it and nothing is stored.
    """
    row = example_files.add_example_file(session, actor, request.file.file, request.file.filename or "", request.name)
    return _response(row)


@operation("GET /training/examples", role=Role.VIEWER, noun="examples", command="data examples list")
def list_examples(session: Session, actor: Actor, request: ListExampleFiles) -> Page[ExampleFileResponse]:
    """List uploaded conversations, newest first."""
    found = example_files.list_example_files(session, after=request.after, limit=request.limit)
    items = [_response(row) for row in found.items]
    return Page(items=items, next=found.next)


@operation("GET /training/examples/{file}", role=Role.VIEWER, noun="examples", command="data examples show")
def get_examples(session: Session, actor: Actor, file: ExampleFile) -> ExampleFileDetail:
    """Show the statistics and first conversations of an uploaded file."""
    examples = [
        {"messages": each.messages, "learned": each.learned} for each in example_preview.first_conversations(file)
    ]
    return ExampleFileDetail(**_response(file).model_dump(), examples=examples)


@operation("GET /training/examples/{file}/file", role=Role.VIEWER, noun="examples")
def download_examples(session: Session, actor: Actor, file: ExampleFile) -> Download:
    """Download the JSONL as it was checked: each conversation once, tool calls as text."""
    key = file.artifact

    def content(_: Session) -> Iterator[bytes]:
        with artifacts.open_file(key) as stored:
            while part := stored.read(1 << 20):
                yield part

    return Download(f"examples-{file.id.hex[-8:]}.jsonl", "application/x-ndjson", content)


@operation(
    "DELETE /training/examples/{file}",
    role=Role.TRAINER,
    noun="examples",
    command="data examples delete",
    audited=False,
    page="/training/examples?deleted={file}",
    notice="{file} was deleted. Run `proctor data examples restore {file}` to restore it within a week.",
)
def delete_examples(session: Session, actor: Actor, file: ExampleFile) -> None:
    """Delete an uploaded file. You can restore it for a week with `proctor data examples restore`."""
    example_files.delete_example_file(session, actor, file)


@operation(
    "POST /training/examples/{file}/restore",
    role=Role.TRAINER,
    noun="examples",
    command="data examples restore",
    audited=False,
    page="/training/examples/{id}",
    notice="{name} is restored.",
)
def restore_examples(session: Session, actor: Actor, file: ExampleFile) -> ExampleFileResponse:
    """Restore a deleted file."""
    example_files.restore_example_file(session, actor, file)
    return _response(file)


def _response(row: ExampleFile) -> ExampleFileResponse:
    names = ("id", "name", "conversations", "size_bytes", "created_at")
    return ExampleFileResponse(
        **{name: getattr(row, name) for name in names},
        statistics=example_files.public_statistics(row),
        deleted_at=example_files.deleted_at(row),
    )
