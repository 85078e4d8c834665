"""Any file that can be imported, read row by row: which tool wrote it is told by its content."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from backend.domain.exchange.record import RolloutRecord
from backend.exchange.formats import plain, table, verifiers_v0, verifiers_v1
from backend.exchange.formats.unpacking import MAX_BYTES, BadFile, unpack

MAX_ROWS = 1_000_000
MAX_LINE = 32 * 1024**2
MAX_ROW_GROUP = 1024**3
_BATCH = 64
_PARQUET, _ZIP = b"PAR1", b"PK\x03\x04"
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


def open_file(file: Path, scratch: Path) -> OpenedFile:
    """Look at what it is; zips are unpacked into `scratch`. Raises BadFile."""
    with file.open("rb") as opened:
        head = opened.read(4)
    if not head:
        raise BadFile("the file is empty")
    if head != _ZIP:
        return OpenedFile([file])
    inside = unpack(file, scratch)
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
    return _arrow_rows(path) if path.suffix.lower() == ".arrow" else _lines(path)


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
        file = pq.ParquetFile(path, thrift_string_size_limit=10**8, thrift_container_size_limit=10**6)
        _check_sizes(file.metadata)
        yield from _numbered(file.iter_batches(batch_size=_BATCH, use_threads=False))
    except (pa.ArrowException, OSError) as error:
        raise BadFile(f"Parquet that cannot be read: {error}") from error


def _check_sizes(metadata: Any) -> None:
    if metadata.num_rows > MAX_ROWS:
        raise BadFile(f"{metadata.num_rows:,} rows; at most {MAX_ROWS:,} are read")
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    if sum(sizes) > MAX_BYTES or max(sizes, default=0) > MAX_ROW_GROUP:
        raise BadFile("the Parquet file unpacks to more than can be read; it is refused")


def _arrow_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa

    try:
        with pa.OSFile(str(path)) as file:
            yield from _numbered(pa.ipc.open_stream(file))
    except (pa.ArrowException, OSError) as error:
        raise BadFile(f"Arrow data that cannot be read: {error}") from error


def _numbered(batches: Any) -> Iterator[tuple[str, Row]]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH):
            for row in batch.slice(start, _BATCH).to_pylist():
                number += 1
                yield f"row {number}", row


def _words(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text
