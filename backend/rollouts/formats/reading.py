"""Any file that can be imported, read row by row: which tool wrote it is told by its content."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from backend.domain.rollouts.record import RolloutRecord
from backend.rollouts.formats import bounds, plain, table, verifiers_v0, verifiers_v1
from backend.rollouts.formats.unpacking import MAX_BYTES, MAX_RATIO, BadFile, unpack

MAX_ROWS = 1_000_000
MAX_LINE = 32 * 1024**2
FREE_TABLE_BYTES = 1024**3
"""A small table may unpack to this much, whatever its size."""
_BATCH = 16
_PARQUET, _ZIP = b"PAR1", b"PK\x03\x04"
_TABLES = (_PARQUET, b"PARE", b"ARRO")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    tool: str
    is_row: Callable[[Row], bool]
    read: Callable[[Row], RolloutRecord]


FORMATS = (
    Format("Proctor (table)", table.is_row, table.read),
    Format("verifiers 0.1 to 0.3", verifiers_v0.is_row, verifiers_v0.read),
    Format("verifiers 0.4", verifiers_v1.is_row, verifiers_v1.read),
    Format("plain JSONL", plain.is_row, plain.read),
)


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that may be read several times."""

    parts: Sequence[Path]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Of verifiers' `metadata.json`."""

    @property
    def is_text(self) -> bool:
        """Only lines of JSON, by content and not by name."""
        return not any(map(_is_table, self.parts))

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Each with where it stands. Raises BadFile."""
        count = 0
        for part in self.parts:
            for number, row in _rows_of(part):
                count += 1
                if count > MAX_ROWS:
                    raise BadFile(f"more than {MAX_ROWS:,} rollouts")
                yield (f"{part.name} " if len(self.parts) > 1 else "") + number, row

    def read(self, place: str, row: Row) -> tuple[RolloutRecord, Format]:
        """Raises BadFile with the place of what cannot be read."""
        known = format_of(place, row)
        try:
            return known.read(row), known
        except ValidationError as error:
            raise BadFile(f"{place}: {_words(error)}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise BadFile(f"{place}: {error}") from error

    def records(self) -> Iterator[tuple[str, RolloutRecord]]:
        for place, row in self.rows():
            yield place, self.read(place, row)[0]


def open_file(file: Path, scratch: Path, most: int = MAX_BYTES) -> OpenedFile:
    """Look at what it is; zips are unpacked into `scratch`. Raises BadFile, TooMuch where one has more than `most`."""
    with file.open("rb") as opened:
        head = opened.read(4)
    if not head:
        raise BadFile("the file is empty")
    if head != _ZIP:
        return OpenedFile([file])
    inside = unpack(file, scratch, most)
    by_name = {path.name: path for path in inside}
    for name in ("results.jsonl", "traces.jsonl"):
        if name in by_name:
            return OpenedFile([by_name[name]], _metadata(by_name.get("metadata.json")))
    for ending in (".parquet", ".arrow", ".jsonl"):
        if parts := [path for path in inside if path.suffix.lower() == ending]:
            return OpenedFile(parts)
    raise BadFile("the zip holds neither results.jsonl, traces.jsonl nor Parquet, Arrow or JSONL files")


def format_of(place: str, row: Row) -> Format:
    for known in FORMATS:
        if known.is_row(row):
            return known
    raise BadFile(f"{place}: no known form; a rollout has `messages` (or is one of verifiers' rows)")


def _metadata(path: Path | None) -> Mapping[str, Any]:
    if path is None or path.stat().st_size > MAX_LINE:
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows_of(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open("rb") as file:
        head = file.read(4)
    if head == _PARQUET:
        return _parquet_rows(path)
    return _arrow_rows(path) if _is_table(path) else _lines(path)


def _is_table(path: Path) -> bool:
    """Tables are read by C++ code, in a worker's bounded process alone."""
    with path.open("rb") as file:
        return file.read(4) in _TABLES or path.suffix.lower() == ".arrow"


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise BadFile(f"line {number}: longer than {MAX_LINE // 1024**2} MiB")
            if line.strip():
                yield f"line {number}", _object(line, number)


def _object(line: bytes, number: int) -> Row:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadFile(f"line {number}: {error.msg}") from error
    if not isinstance(row, dict):
        raise BadFile(f"line {number}: no JSON object")
    return row


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, thrift_string_size_limit=10**7, thrift_container_size_limit=10**5) as file:
            bounds.check_metadata(file.metadata, max_rows=MAX_ROWS, max_bytes=MAX_BYTES)
            bounds.check_schema(file.schema_arrow)
            yield from _numbered(file.iter_batches(batch_size=_BATCH, use_threads=False), _most_of(path))
    except MemoryError as error:
        raise bounds.too_large() from error
    except (pa.ArrowException, OSError) as error:
        raise BadFile(f"Parquet that cannot be read: {_first_line(error)}") from error


def _arrow_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            bounds.check_schema(stream.schema)
            yield from _numbered(stream, _most_of(path))
    except MemoryError as error:
        raise bounds.too_large() from error
    except (pa.ArrowException, OSError) as error:
        raise BadFile(f"Arrow data that cannot be read: {_first_line(error)}") from error


def _most_of(path: Path) -> int:
    """How many bytes a table may unpack to."""
    return min(MAX_BYTES, max(FREE_TABLE_BYTES, path.stat().st_size * MAX_RATIO))


def _numbered(batches: Any, left: int) -> Iterator[tuple[str, Row]]:
    """Row by row, so that what a dictionary or an empty type abbreviates is spelled out once at a time."""
    number = 0
    for batch in batches:
        if number + batch.num_rows > MAX_ROWS:
            raise BadFile(f"more than {MAX_ROWS:,} rows")
        for start in range(batch.num_rows):
            number += 1
            row = batch.slice(start, 1)
            left -= bounds.check_row(row, f"row {number}", MAX_LINE, left)
            yield f"row {number}", row.to_pylist()[0]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _words(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text
