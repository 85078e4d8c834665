"""Operations on training examples: uploaded conversations, a preview for a warm-up, and SFT data from rollouts."""

from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.domain.vocabulary import UNDER_WAY, Role
from backend.errors import Conflict, NotFound
from backend.operations.declaration import operation, reference
from backend.operations.ids import find_by_end, parse_id
from backend.operations.schemas import Download
from backend.runs.tables import Run
from backend.training import example_files, example_preview, schemas, sft_data
from backend.training.forms import UploadExamples
from backend.training.tables import ExampleFile
from backend.web.audit import audit
from backend.web.identity import Actor
from backend.web.paging import Page


class FileInUse(Conflict):
    """A training run that has not finished learns from this file. Stop the run first."""


@reference(ExampleFile, "Id of a file, the last characters of it, or its name.")
def find_example_file(session: Session, text: str) -> ExampleFile:
    """The file with this id, deleted or not; else the latest with this name, else by the end of its id."""
    if (file_id := parse_id(text)) is None:
        newest = select(ExampleFile.id).where(~example_files.IS_DELETED).order_by(ExampleFile.id.desc())
        named = newest.where(ExampleFile.name == text).limit(1)
        file_id = session.scalar(named) or find_by_end(session, newest, ExampleFile.id, text)
    if file_id is None:
        raise NotFound(f"There is no uploaded file {text}.")
    return example_files.get_example_file(session, file_id)


@operation("POST /training/examples/preview", role=Role.VIEWER, noun="examples", audited=False)
def preview_examples(session: Session, actor: Actor, request: schemas.TrainingRequest) -> dict[str, object]:
    """Preview what the SFT warm-up of a training run would learn from: numbers, lengths, rewards and examples."""
    preview = example_preview.preview_examples(session, request)
    sources: list[dict[str, object]] = [
        {
            "source": source.source,
            "share": source.share,
            "available": source.available,
            "looked_at": source.found.conversations,
            "too_long": source.too_long,
            "warnings": source.warnings,
            "runs": [{"id": str(run.id), "name": run.name} for run in source.runs],
            "file": {"id": str(source.file.id), "name": source.file.name} if source.file else None,
            "statistics": source.found.as_json(),
            "examples": [{"messages": each.messages, "reward": each.reward} for each in source.found.examples],
        }
        for source in preview.sources
    ]
    measure = preview.measure
    return {"tokens_are": measure.told, "context": measure.context, "system": preview.system, "sources": sources}


@operation("POST /training/pairs/preview", role=Role.VIEWER, noun="examples", audited=False)
def preview_pairs(session: Session, actor: Actor, request: schemas.TrainingRequest) -> schemas.PairPreviewResponse:
    """Preview the pairs that preference training would learn from: their number, their reasons and three of them."""
    preview = example_preview.preview_pairs(session, request)
    selection = preview.selection
    return schemas.PairPreviewResponse(
        pairs=len(selection.pairs),
        found=selection.found,
        fewest=preview.fewest,
        tasks=selection.tasks,
        rollouts=selection.rollouts.passing,
        by_reason=preview.by_reason,
        runs=[run.id for run in selection.rollouts.runs],
        warnings=preview.warnings,
        examples=[
            schemas.PairExample(
                reason=each.pair.reason,
                task=each.chosen.task,
                chosen_id=each.pair.chosen,
                rejected_id=each.pair.rejected,
                chosen_reward=each.chosen.reward,
                rejected_reward=each.rejected.reward,
                chosen=each.chosen.messages,
                rejected=each.rejected.messages,
            )
            for each in preview.shown
        ],
    )


@operation(
    "POST /training/examples",
    role=Role.TRAINER,
    noun="examples",
    command="data examples add",
    status=201,
    audited=False,
    max_body_size=example_files.MAX_UPLOAD_BYTES + 2**20,
)
def add_examples(session: Session, actor: Actor, request: UploadExamples) -> schemas.ExampleFileResponse:
    """Upload conversations: {"messages": […]} or {"prompt": …, "completion": …}, as TRL and OpenAI write them.

    If a line is invalid, the error names it and nothing is stored.
    """
    row = example_files.add_example_file(session, actor, request.file.file, request.file.filename or "", request.name)
    return _response(row)


@operation("GET /training/examples", role=Role.VIEWER, noun="examples", command="data examples list")
def list_examples(
    session: Session, actor: Actor, request: schemas.ListExampleFiles
) -> Page[schemas.ExampleFileResponse]:
    """List uploaded conversations, newest first."""
    found = example_files.list_example_files(session, after=request.after, limit=request.limit)
    return Page(items=[_response(row) for row in found.items], next=found.next)


@operation("GET /training/examples/{file}", role=Role.VIEWER, noun="examples", command="data examples show")
def get_examples(session: Session, actor: Actor, file: ExampleFile) -> schemas.ExampleFileDetail:
    """Show the statistics and first conversations of an uploaded file."""
    examples = [
        {"messages": each.messages, "learned": each.learned} for each in example_preview.first_conversations(file)
    ]
    return schemas.ExampleFileDetail(**_response(file).model_dump(), examples=examples)


@operation("GET /training/examples/{file}/file", role=Role.VIEWER, noun="examples")
def download_examples(session: Session, actor: Actor, file: ExampleFile) -> Download:
    """Download the JSONL as it was checked: each conversation once, tool calls as text."""
    name, key = f"examples-{file.id.hex[-8:]}.jsonl", file.artifact
    return Download(name, "application/x-ndjson", lambda _: artifacts.read_parts(artifacts.open_file(key)))


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
    learning = Run.configuration["sft"]["file"].astext == str(file.id), Run.status.in_(UNDER_WAY)
    if session.scalar(select(Run.id).where(*learning).limit(1)):
        raise FileInUse
    if file.deleted_at is None:
        file.statistics = {**file.statistics, "deleted_at": datetime.now(UTC).isoformat()}
        session.flush()
        audit(session, actor, "examples.delete", "example_file", file.id, name=file.name)
    example_files.remove_deleted(session)


@operation(
    "POST /training/examples/{file}/restore",
    role=Role.TRAINER,
    noun="examples",
    command="data examples restore",
    audited=False,
    page="/training/examples/{id}",
    notice="{name} is restored.",
)
def restore_examples(session: Session, actor: Actor, file: ExampleFile) -> schemas.ExampleFileResponse:
    """Restore a deleted file."""
    if file.deleted_at is not None:
        file.statistics = {name: value for name, value in file.statistics.items() if name != "deleted_at"}
        session.flush()
        audit(session, actor, "examples.restore", "example_file", file.id, name=file.name)
    return _response(file)


@operation("GET /sft", role=Role.VIEWER)
def preview_sft(session: Session, actor: Actor, request: schemas.SftFilter) -> schemas.SftPreview:
    """Preview training data from rollouts: numbers of conversations, repeats and tokens, with samples."""
    return sft_data.preview(session, request)


@operation("GET /sft/file", role=Role.VIEWER)
def download_sft(session: Session, actor: Actor, request: schemas.DownloadSft) -> Download:
    """Download training data from rollouts as chat JSONL, or as a zipped folder for Hugging Face's `datasets`."""
    return sft_data.download(session, request, request.format)


@operation("POST /sft/demonstrations", role=Role.TRAINER, audited=False)
def mark_demonstrations(
    session: Session, actor: Actor, request: schemas.MarkDemonstrations
) -> schemas.MarkedDemonstrations:
    """Mark rollouts as demonstrations for the SFT warm-up, or remove the mark. Held-out tasks are never marked."""
    changed = sft_data.mark_demonstrations(session, actor, request, is_wanted=request.is_wanted)
    return schemas.MarkedDemonstrations(changed=changed)


def _response(row: ExampleFile) -> schemas.ExampleFileResponse:
    return schemas.ExampleFileResponse.from_row(
        row, statistics={name: value for name, value in row.statistics.items() if name not in {"hash", "deleted_at"}}
    )
