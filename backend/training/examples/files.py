"""Uploaded conversations: taken in whole or not at all, listed, and deleted in a way that can be undone for a while."""

import hashlib
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.domain.ids import new_id
from backend.domain.text import plain_text
from backend.domain.training.example_lines import MAX_LINE_BYTES, BadLine, read_line, write_line
from backend.domain.training.examples import LessonStatistics
from backend.domain.vocabulary import UNDER_WAY
from backend.errors import Conflict, InvalidInput, NotFound
from backend.runs.tables import Run
from backend.training.tables import LessonFile
from backend.web.audit import audit
from backend.web.cursors import Slice
from backend.web.identity import Actor
from backend.web.paging import Key, slice_of

MAX_UPLOAD_BYTES = 64 * 1024**2
MAX_CONVERSATIONS = 100_000
MOST_TOLD = 5
"""Wrong lines that are named before reading ends."""
KEPT_AFTER_DELETING = timedelta(days=7)
NEWEST = (Key(LessonFile.id),)
_DELETED = "deleted_at"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class IsBeingLearned(Conflict):
    """A training run that is not over learns from this file; stop it first."""


class AlreadyUploaded(Conflict):
    """This very file is here already."""


@dataclass
class _Reading:
    """A file on its way in."""

    statistics: LessonStatistics = field(default_factory=LessonStatistics)
    problems: list[str] = field(default_factory=list)
    digest: str = ""


def add_lesson_file(session: Session, actor: Actor, upload: IO[bytes], file_name: str, name: str | None) -> LessonFile:
    """Check every line and store what it says, each conversation once. Anything wrong: nothing is stored."""
    with tempfile.TemporaryDirectory(prefix="proctor-lessons-") as folder:
        path = Path(folder) / "lessons.jsonl"
        with path.open("wb") as out:
            reading = _read(upload, out)
        _refuse(reading)
        _refuse_repeated(session, reading.digest)
        file_id = new_id()
        row = LessonFile(
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
    audit(session, actor, "lessons.add", "lesson_file", row.id, name=row.name, conversations=row.conversations)
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
    statement = select(LessonFile).where(LessonFile.statistics["hash"].astext == digest, ~_is_deleted())
    if known := session.scalars(statement.limit(1)).first():
        raise AlreadyUploaded(f"This very file is here already, as “{known.name}” (/training/lessons/{known.id}).")


def lesson_files(session: Session, *, after: str | None = None, limit: int = 50) -> Slice[LessonFile]:
    """Newest first, without deleted ones."""
    return slice_of(session, select(LessonFile).where(~_is_deleted()), NEWEST, after=after, limit=limit)


def get_lesson_file(session: Session, file_id: uuid.UUID) -> LessonFile:
    """Also a deleted one, which can be taken back."""
    row = session.get(LessonFile, file_id)
    if row is None:
        raise NotFound("There is no such file of conversations.")
    return row


def deleted_at(row: LessonFile) -> datetime | None:
    told = row.statistics.get(_DELETED)
    return datetime.fromisoformat(told) if told else None


def delete_lesson_file(session: Session, actor: Actor, row: LessonFile) -> None:
    """It is no longer offered; its conversations stay for a week, so that a slip can be undone."""
    if _learning(session, row):
        raise IsBeingLearned
    if deleted_at(row) is None:
        row.statistics = {**row.statistics, _DELETED: datetime.now(UTC).isoformat()}
        session.flush()
        audit(session, actor, "lessons.delete", "lesson_file", row.id, name=row.name)
    _forget_deleted(session)


def restore_lesson_file(session: Session, actor: Actor, row: LessonFile) -> None:
    if deleted_at(row) is not None:
        row.statistics = {name: value for name, value in row.statistics.items() if name != _DELETED}
        session.flush()
        audit(session, actor, "lessons.restore", "lesson_file", row.id, name=row.name)


def runs_that_learned(session: Session, row: LessonFile) -> Sequence[Run]:
    """Training runs that were told to learn from it, newest first."""
    return session.scalars(_told_to_learn(row).order_by(Run.id.desc()).limit(20)).all()


def _told_to_learn(row: LessonFile) -> Select[Run]:
    return select(Run).where(Run.configuration["sft"]["file"].astext == str(row.id))


def _learning(session: Session, row: LessonFile) -> bool:
    return session.scalars(_told_to_learn(row).where(Run.status.in_(UNDER_WAY)).limit(1)).first() is not None


def _is_deleted() -> ColumnElement[bool]:
    is_there: ColumnElement[bool] = LessonFile.statistics[_DELETED].astext.is_not(None)
    return is_there


def _forget_deleted(session: Session) -> None:
    """Those that were deleted long ago go for good."""
    long_ago = (datetime.now(UTC) - KEPT_AFTER_DELETING).isoformat()
    old = select(LessonFile).where(LessonFile.statistics[_DELETED].astext < long_ago)
    for row in session.scalars(old).all():
        session.delete(row)
        artifacts.delete(row.artifact)
