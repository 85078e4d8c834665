"""Uploaded conversations: checked and stored, listed, deleted and restored."""

import hashlib
import tempfile
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.rollouts.filters import FilterError, parse
from backend.domain.text import plain_text
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.example_lines import MAX_LINE_BYTES, BadLine, read_line, write_line
from backend.domain.training.examples import ExampleStatistics
from backend.domain.training.mix import union_columns
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotFound
from backend.rollouts.scope import scope_of
from backend.runs.tables import Run
from backend.training.example_sources import LearningScope, demonstrated_rollouts, selected_rollouts
from backend.training.preference_pairs import check_pairs
from backend.training.tables import ExampleFile
from backend.web.audit import Requester, audit
from backend.web.paging import Key, Slice, slice_of

MAX_UPLOAD_BYTES = 64 * 1024**2
MAX_CONVERSATIONS = 100_000
MAX_REPORTED = 5
"""Number of invalid lines after which reading stops."""
IS_DELETED: ColumnElement[bool] = ExampleFile.statistics["deleted_at"].astext.is_not(None)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class AlreadyUploaded(Conflict):
    """This file was already uploaded."""


def add_example_file(
    session: Session, actor: Requester, upload: IO[bytes], file_name: str, name: str | None
) -> ExampleFile:
    """Check every line and store each conversation once. If a line is invalid, nothing is stored.

    Raises InvalidInput and AlreadyUploaded.
    """
    with tempfile.TemporaryDirectory(prefix="proctor-examples-") as folder:
        path = Path(folder) / "examples.jsonl"
        with path.open("wb") as out:
            statistics, digest = _copy_conversations(upload, out)
        same = select(ExampleFile).where(ExampleFile.statistics["hash"].astext == digest, ~IS_DELETED)
        if known := session.scalars(same.limit(1)).first():
            raise AlreadyUploaded(f"This file was already uploaded as “{known.name}” (/training/examples/{known.id}).")
        file_id = new_id()
        row = ExampleFile(
            id=file_id,
            name=plain_text((name or Path(file_name).name or "examples").strip())[:200],
            artifact=f"lessons/{file_id}.jsonl",
            size_bytes=path.stat().st_size,
            conversations=statistics.conversations,
            statistics={**statistics.as_json(), "hash": digest},
            created_by=actor.person_id,
        )
        artifacts.put_file(path, row.artifact)
    session.add(row)
    session.flush()
    audit(session, actor, "examples.add", "example_file", row.id, name=row.name, conversations=row.conversations)
    remove_deleted(session)
    return row


def _copy_conversations(upload: IO[bytes], out: IO[bytes]) -> tuple[ExampleStatistics, str]:
    """Write each valid conversation once; return the statistics and the SHA-256 of the upload. Raises InvalidInput."""
    statistics, problems, digest, size = ExampleStatistics(), list[str](), hashlib.sha256(), 0
    # a line that is too long is the last one: where the next begins is unknown
    is_cut, number = False, 0
    while not is_cut and (line := upload.readline(MAX_LINE_BYTES + 1)):
        number += 1
        if is_cut := len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line += b"\x00"  # so that stripping white space cannot make it fit
        digest.update(line)
        size += len(line)
        if size > MAX_UPLOAD_BYTES:
            raise InvalidInput(fields={"file": f"At most {MAX_UPLOAD_BYTES // 1024**2} MiB. Split the file."})
        text = line.removeprefix(_BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
        if not text:
            continue
        try:
            conversation = read_line(text)
        except BadLine as error:
            problems.append(f"Line {number:,}: {error}.")
            if len(problems) == MAX_REPORTED:
                problems.append("Checking stopped there.")
                break
            continue
        if statistics.is_repeated(conversation):
            continue
        if statistics.conversations >= MAX_CONVERSATIONS:
            raise InvalidInput(fields={"file": f"At most {MAX_CONVERSATIONS:,} conversations. Split the file."})
        statistics.add(conversation)
        out.write(write_line(conversation))
    if problems:
        raise InvalidInput(fields={"file": plain_text(f"{' '.join(problems)} Nothing was stored.")})
    if not statistics.conversations:
        raise InvalidInput(fields={"file": "The file contains no conversations."})
    return statistics, digest.hexdigest()


def list_example_files(session: Session, *, after: str | None = None, limit: int = 50) -> Slice[ExampleFile]:
    """Files that are not deleted, newest first."""
    statement = select(ExampleFile).where(~IS_DELETED)
    return slice_of(session, statement, (Key(ExampleFile.id),), after=after, limit=limit)


def get_example_file(session: Session, file_id: uuid.UUID) -> ExampleFile:
    """The file, also a deleted one, which can be restored. Raises NotFound."""
    row = session.get(ExampleFile, file_id)
    if row is None:
        raise NotFound("There is no such file of conversations.")
    return row


def remove_deleted(session: Session) -> None:
    """Remove files that can no longer be restored."""
    long_ago = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    old = select(ExampleFile).where(ExampleFile.statistics["deleted_at"].astext < long_ago)
    for row in session.scalars(old).all():
        session.delete(row)
        artifacts.delete(row.artifact)


def check_filter(session: Session, where: str, version_ids: Sequence[uuid.UUID], setting: str) -> None:
    """Raise InvalidInput if a run on these versions could not filter its own episodes like this."""
    statement = select(EnvironmentVersion.manifest).where(EnvironmentVersion.id.in_(version_ids))
    manifests = map(Manifest.model_validate, session.scalars(statement)) if where.strip() else ()
    planned = Run(id=uuid.UUID(int=0), columns=[each.name for each in union_columns(manifests)], configuration={})
    try:
        parse(where, scope_of(session, planned, for_learning=True).fields)
    except FilterError as error:
        raise InvalidInput(fields={setting: f"{error.message} (at character {error.start + 1})"}) from error


def check_sources(session: Session, configuration: TrainingConfiguration, version_ids: Sequence[uuid.UUID]) -> None:
    """Raise InvalidInput for a source of training examples that has none, and for too few pairs."""
    sft, recipe = configuration.sft, configuration.recipe
    if recipe is Recipe.REJECTION_SAMPLING:
        check_filter(session, configuration.rejection.where, version_ids, "rejection.where")
    if recipe is Recipe.DPO:
        check_pairs(session, configuration, version_ids)
    if not recipe.has_sft:
        return
    if sft.uses("script"):
        check_filter(session, sft.script_where, version_ids, "sft.script_where")
    if sft.uses("file"):
        file = session.get(ExampleFile, sft.file)
        if file is None or file.deleted_at is not None:
            raise InvalidInput(fields={"sft.file": "There is no such file of conversations."})
    if sft.uses("rollouts") and not selected_rollouts(session, sft, LearningScope(tuple(version_ids))).ids:
        field = "sft.where" if sft.where.strip() else "sft.runs"
        message = "No stored rollout passes. Play training tasks (split train); held-out tasks are never used."
        raise InvalidInput(fields={field: message})
    if sft.demonstrations and not demonstrated_rollouts(session, version_ids):
        message = "No episode of this version is marked as a demonstration. Mark some, or set this to 0."
        raise InvalidInput(fields={"sft.demonstrations": message})
