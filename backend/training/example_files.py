"""Uploaded conversations: checked and stored, listed, deleted and restored."""

import hashlib
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.domain.ids import new_id
from backend.domain.text import plain_text
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.example_lines import MAX_LINE_BYTES, BadLine, read_line, write_line
from backend.domain.training.examples import ExampleStatistics
from backend.domain.vocabulary import UNDER_WAY
from backend.errors import Conflict, InvalidInput, NotFound
from backend.operations.ids import find_by_end, parse_id
from backend.runs.tables import Run
from backend.training.example_sources import Asked, check_script_filter, chosen_rollouts, demonstrated_rollouts
from backend.training.tables import ExampleFile
from backend.web.audit import audit
from backend.web.identity import Actor
from backend.web.paging import Key, Slice, slice_of

MAX_UPLOAD_BYTES = 64 * 1024**2
MAX_CONVERSATIONS = 100_000
MOST_TOLD = 5
"""Wrong lines that are named before reading ends."""
KEPT_AFTER_DELETING = timedelta(days=7)
NEWEST = (Key(ExampleFile.id),)
_DELETED = "deleted_at"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class IsBeingLearned(Conflict):
    """A training run that is not over learns from this file; stop it first."""


class AlreadyUploaded(Conflict):
    """This very file is here already."""


@dataclass
class _Reading:
    """A file on its way in."""

    statistics: ExampleStatistics = field(default_factory=ExampleStatistics)
    problems: list[str] = field(default_factory=list)
    digest: str = ""


def add_example_file(
    session: Session, actor: Actor, upload: IO[bytes], file_name: str, name: str | None
) -> ExampleFile:
    """Check every line and store what it says, each conversation once. Anything wrong: nothing is stored."""
    with tempfile.TemporaryDirectory(prefix="proctor-lessons-") as folder:
        path = Path(folder) / "lessons.jsonl"
        with path.open("wb") as out:
            reading = _read(upload, out)
        _refuse(reading)
        _refuse_repeated(session, reading.digest)
        file_id = new_id()
        row = ExampleFile(
            id=file_id,
            name=plain_text((name or Path(file_name).name or "lessons").strip())[:200],
            artifact=f"lessons/{file_id}.jsonl",
            size_bytes=path.stat().st_size,
            conversations=reading.statistics.conversations,
            statistics={**reading.statistics.as_json(), "hash": reading.digest},
            created_by=actor.person_id,
        )
        artifacts.put_file(path, row.artifact)
    session.add(row)
    session.flush()
    audit(session, actor, "examples.add", "example_file", row.id, name=row.name, conversations=row.conversations)
    _forget_deleted(session)
    return row


def _read(upload: IO[bytes], out: IO[bytes]) -> _Reading:
    reading, digest, size = _Reading(), hashlib.sha256(), 0
    for number, line in enumerate(_lines(upload), 1):
        digest.update(line)
        size += len(line)
        if size > MAX_UPLOAD_BYTES:
            raise InvalidInput(fields={"file": f"At most {MAX_UPLOAD_BYTES // 1024**2} MiB; split it."})
        text = line.removeprefix(_BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
        if text:
            _take(text, number, reading, out)
        if len(reading.problems) >= MOST_TOLD:
            break
    reading.digest = digest.hexdigest()
    return reading


def _lines(upload: IO[bytes]) -> Iterator[bytes]:
    """A line that is too long is the last: it is refused, and where the next begins is not known."""
    while line := upload.readline(MAX_LINE_BYTES + 1):
        is_cut = len(line) > MAX_LINE_BYTES and not line.endswith(b"\n")
        yield line + b"\x00" if is_cut else line  # so that no white space at its end makes it fit
        if is_cut:
            return


def _take(text: bytes, number: int, reading: _Reading, out: IO[bytes]) -> None:
    """One line: a repeat is counted and left out."""
    statistics = reading.statistics
    try:
        conversation = read_line(text)
    except BadLine as error:
        reading.problems.append(f"Line {number:,}: {error}.")
        return
    if statistics.is_repeated(conversation):
        return
    if statistics.conversations >= MAX_CONVERSATIONS:
        raise InvalidInput(fields={"file": f"At most {MAX_CONVERSATIONS:,} conversations; split it."})
    statistics.add(conversation)
    out.write(write_line(conversation))


def _refuse(reading: _Reading) -> None:
    if reading.problems:
        more = " Reading ended there." if len(reading.problems) >= MOST_TOLD else ""
        raise InvalidInput(fields={"file": plain_text(f"{' '.join(reading.problems)}{more} Nothing was stored.")})
    if not reading.statistics.conversations:
        raise InvalidInput(fields={"file": "The file holds no conversation."})


def _refuse_repeated(session: Session, digest: str) -> None:
    statement = select(ExampleFile).where(ExampleFile.statistics["hash"].astext == digest, ~_is_deleted())
    if known := session.scalars(statement.limit(1)).first():
        raise AlreadyUploaded(f"This very file is here already, as “{known.name}” (/training/examples/{known.id}).")


def list_example_files(session: Session, *, after: str | None = None, limit: int = 50) -> Slice[ExampleFile]:
    """Newest first, without deleted ones."""
    return slice_of(session, select(ExampleFile).where(~_is_deleted()), NEWEST, after=after, limit=limit)


def find_example_file(session: Session, text: str) -> ExampleFile:
    """By id, also a deleted one; by the end of its id; by name, the newest."""
    if file_id := parse_id(text):
        return get_example_file(session, file_id)
    newest = select(ExampleFile.id).where(~_is_deleted()).order_by(ExampleFile.id.desc())
    file_id = session.scalar(newest.where(ExampleFile.name == text).limit(1)) or find_by_end(
        session, newest, ExampleFile.id, text
    )
    if file_id is None:
        raise NotFound(f"There is no uploaded file {text}.")
    return get_example_file(session, file_id)


def fields_of(row: ExampleFile) -> dict[str, Any]:
    """The values of `ExampleFileResponse`."""
    hidden = {"hash", _DELETED}
    names = ("id", "name", "conversations", "size_bytes", "created_at")
    statistics = {name: value for name, value in row.statistics.items() if name not in hidden}
    return {**{name: getattr(row, name) for name in names}, "statistics": statistics, "deleted_at": deleted_at(row)}


def get_example_file(session: Session, file_id: uuid.UUID) -> ExampleFile:
    """Also a deleted one, which can be taken back."""
    row = session.get(ExampleFile, file_id)
    if row is None:
        raise NotFound("There is no such file of conversations.")
    return row


def deleted_at(row: ExampleFile) -> datetime | None:
    told = row.statistics.get(_DELETED)
    return datetime.fromisoformat(told) if told else None


def delete_example_file(session: Session, actor: Actor, row: ExampleFile) -> None:
    """It is no longer offered; its conversations stay for a week, so that a slip can be undone."""
    if _learning(session, row):
        raise IsBeingLearned
    if deleted_at(row) is None:
        row.statistics = {**row.statistics, _DELETED: datetime.now(UTC).isoformat()}
        session.flush()
        audit(session, actor, "examples.delete", "example_file", row.id, name=row.name)
    _forget_deleted(session)


def restore_example_file(session: Session, actor: Actor, row: ExampleFile) -> None:
    if deleted_at(row) is not None:
        row.statistics = {name: value for name, value in row.statistics.items() if name != _DELETED}
        session.flush()
        audit(session, actor, "examples.restore", "example_file", row.id, name=row.name)


def runs_that_learned(session: Session, row: ExampleFile) -> Sequence[Run]:
    """Training runs that were told to learn from it, newest first."""
    return session.scalars(_told_to_learn(row).order_by(Run.id.desc()).limit(20)).all()


def _told_to_learn(row: ExampleFile) -> Select[Run]:
    return select(Run).where(Run.configuration["sft"]["file"].astext == str(row.id))


def _learning(session: Session, row: ExampleFile) -> bool:
    return session.scalars(_told_to_learn(row).where(Run.status.in_(UNDER_WAY)).limit(1)).first() is not None


def _is_deleted() -> ColumnElement[bool]:
    is_there: ColumnElement[bool] = ExampleFile.statistics[_DELETED].astext.is_not(None)
    return is_there


def _forget_deleted(session: Session) -> None:
    """Those that were deleted long ago go for good."""
    long_ago = (datetime.now(UTC) - KEPT_AFTER_DELETING).isoformat()
    old = select(ExampleFile).where(ExampleFile.statistics[_DELETED].astext < long_ago)
    for row in session.scalars(old).all():
        session.delete(row)
        artifacts.delete(row.artifact)


def check_sources(session: Session, configuration: TrainingConfiguration, version_ids: Sequence[uuid.UUID]) -> None:
    """Raises InvalidInput at the field whose source holds nothing."""
    choice = configuration.sft
    if not configuration.recipe.has_sft:
        return
    if choice.uses("script") and choice.script_where.strip():
        check_script_filter(session, choice.script_where, version_ids)
    if choice.uses("file"):
        file = session.get(ExampleFile, choice.file)
        if file is None or deleted_at(file) is not None:
            raise InvalidInput(fields={"sft.file": "There is no such file of conversations."})
    if choice.uses("rollouts") and not chosen_rollouts(session, choice, Asked(tuple(version_ids))).ids:
        where = "sft.where" if choice.where.strip() else "sft.runs"
        told = "No stored rollout passes. Play training tasks (split train): held-out ones never come in."
        raise InvalidInput(fields={where: told})
    if choice.demonstrations and not demonstrated_rollouts(session, version_ids):
        told = "No episode of this version is marked: mark some, or set this to 0."
        raise InvalidInput(fields={"sft.demonstrations": told})
