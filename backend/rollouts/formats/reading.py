"""Read any file that can be imported row by row, and survey a whole file before anything of it is stored.

The tool that wrote a file is recognized by its content.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.record import RewardRecord, RolloutRecord
from backend.domain.vocabulary import RolloutStatus
from backend.rollouts.formats import bounds, native, verifiers_v0, verifiers_v1
from backend.rollouts.formats.bounds import MAX_BYTES, MAX_RATIO, BadFile, unpack

if TYPE_CHECKING:
    import pyarrow as pa

MAX_ROWS = 1_000_000
MAX_LINE = 32 * 1024**2
FREE_TABLE_BYTES = 1024**3
"""A small table may unpack to this much, whatever its size."""
_BATCH = 16
_PARQUET, _ZIP = b"PAR1", b"PK\x03\x04"
_TABLES = (_PARQUET, b"PARE", b"ARRO")
_NOT_A_WORD = re.compile(r"[^a-z0-9_]+")
_TOO_LARGE = "the file needs more memory than an import may use; split it, or store it as JSONL"
Row = Mapping[str, Any]


FORMATS: tuple[tuple[str, Sequence[Set[str]], Callable[[Row], RolloutRecord]], ...] = (
    ("Proctor (table)", [{"messages", "task_index"}], native.read_table_row),
    ("verifiers 0.1 to 0.3", [{"example_id", "completion"}], verifiers_v0.read),
    ("verifiers 0.4", [{"traces"}, {"nodes", "rewards"}], verifiers_v1.read),
    ("plain JSONL", [{"messages"}], native.read_line),
)
"""Tool, sets of keys, and reader. A row has all keys of one of the sets; the first format that fits is used."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that can be read several times."""

    parts: Sequence[Path]
    metadata: Row = field(default_factory=dict)
    """Content of verifiers' `metadata.json`."""

    @property
    def is_text(self) -> bool:
        """Whether it holds only lines of JSON, by content and not by name."""
        return not any(map(_is_table, self.parts))

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yield each row with its place in the file. Raises BadFile."""
        count = 0
        for part in self.parts:
            prefix = f"{part.name} " if len(self.parts) > 1 else ""
            for place, row in _table_rows(part) if _is_table(part) else _lines(part):
                count += 1
                if count > MAX_ROWS:
                    raise BadFile(f"more than {MAX_ROWS:,} rollouts")
                yield prefix + place, row

    def read(self, place: str, row: Row) -> tuple[RolloutRecord, str]:
        """Read a row in the format that recognizes it, and name its tool. Raises BadFile, which names the place."""
        fitting = (each for each in FORMATS if any(keys <= row.keys() for keys in each[1]))
        tool, _, read = next(fitting, ("", (), None))
        if read is None:
            raise BadFile(f"{place}: unknown format; a rollout has `messages` (or is a row of verifiers)")
        try:
            return read(row), tool
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            raise BadFile(f"{place}: {path}: {message}" if path else f"{place}: {message}") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise BadFile(f"{place}: {error}") from error

    def records(self) -> Iterator[tuple[str, RolloutRecord]]:
        for place, row in self.rows():
            yield place, self.read(place, row)[0]


def open_file(file: Path, scratch: Path, most: int = MAX_BYTES) -> OpenedFile:
    """Open a file, or unpack a zip into `scratch`. Raises BadFile, and TooMuch for a zip of more than `most` bytes."""
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
            metadata = by_name.get("metadata.json")
            try:
                is_small = metadata is not None and metadata.stat().st_size <= MAX_LINE
                loaded = orjson.loads(metadata.read_bytes()) if metadata and is_small else {}
            except orjson.JSONDecodeError:
                loaded = {}
            return OpenedFile([by_name[name]], loaded if isinstance(loaded, dict) else {})
    for suffix in (".parquet", ".arrow", ".jsonl"):
        if parts := [path for path in inside if path.suffix.lower() == suffix]:
            return OpenedFile(parts)
    raise BadFile("the zip holds neither results.jsonl, traces.jsonl nor Parquet, Arrow or JSONL files")


def _is_table(path: Path) -> bool:
    """Tables are read by C++ code, only in a worker's bounded process."""
    with path.open("rb") as file:
        return file.read(4) in _TABLES or path.suffix.lower() == ".arrow"


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise BadFile(f"line {number}: longer than {MAX_LINE // 1024**2} MiB")
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise BadFile(f"line {number}: {error.msg}") from error
            if not isinstance(row, dict):
                raise BadFile(f"line {number}: not a JSON object")
            yield f"line {number}", row


def _table_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as opened:
        is_parquet = opened.read(4) == _PARQUET
    most = min(MAX_BYTES, max(FREE_TABLE_BYTES, path.stat().st_size * MAX_RATIO))
    try:
        if is_parquet:
            with pq.ParquetFile(path, thrift_string_size_limit=10**7, thrift_container_size_limit=10**5) as file:
                metadata = file.metadata
                if metadata.num_rows > MAX_ROWS:
                    raise BadFile(f"{metadata.num_rows:,} rows; the limit is {MAX_ROWS:,}")
                if metadata.num_columns > bounds.MAX_COLUMNS or metadata.num_row_groups > bounds.MAX_ROW_GROUPS:
                    raise BadFile(f"more than {bounds.MAX_COLUMNS:,} columns or {bounds.MAX_ROW_GROUPS:,} row groups")
                sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
                if sum(sizes) > MAX_BYTES or max(sizes, default=0) > bounds.MAX_ROW_GROUP:
                    raise BadFile("the Parquet file unpacks to more than can be read, so it is refused")
                bounds.check_schema(file.schema_arrow)
                yield from _batch_rows(file.iter_batches(batch_size=_BATCH, use_threads=False), most)
        else:
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
                bounds.check_schema(stream.schema)
                yield from _batch_rows(stream, most)
    except MemoryError as error:
        raise BadFile(_TOO_LARGE) from error
    except (pa.ArrowException, OSError) as error:
        kind = "Parquet" if is_parquet else "Arrow data"
        reason = str(error).partition("\n")[0][:300]
        raise BadFile(f"{kind} that cannot be read: {reason}") from error


def _batch_rows(batches: "Iterable[pa.RecordBatch]", left: int) -> Iterator[tuple[str, Row]]:
    """Unpack row by row, so that only one row at a time takes the memory that dictionaries and empty types save."""
    number = 0
    for batch in batches:
        if number + batch.num_rows > MAX_ROWS:
            raise BadFile(f"more than {MAX_ROWS:,} rows")
        for start in range(batch.num_rows):
            number += 1
            row = batch.slice(start, 1)
            size = sum(bounds.unpacked_bytes(column) for column in row.columns)
            if size > MAX_LINE:
                raise BadFile(f"row {number}: holds more than {MAX_LINE // 1024**2} MiB")
            left -= size
            if left < 0:
                raise BadFile("the table unpacks to more than can be read, so it is refused")
            yield f"row {number}", row.to_pylist()[0]


@dataclass
class FileSurvey:
    tool: str = ""
    rollouts: int = 0
    completed: int = 0
    failed: int = 0
    zeros: int = 0
    """Failed rows that the file stores with reward 0."""
    policies: Counter[str] = field(default_factory=Counter)
    main_policy: str = ""
    """The policy that most rollouts name."""
    environments: Counter[str] = field(default_factory=Counter)
    hashes: Counter[str] = field(default_factory=Counter)
    tasks: set[tuple[object, ...]] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    common: set[str] | None = None
    """Reward columns that every completed rollout has."""
    metrics: set[str] | None = None
    """Metrics that every completed rollout has."""
    sampling: Row = field(default_factory=dict)


def survey(opened: OpenedFile) -> FileSurvey:
    """Read the whole file. Raises BadFile."""
    found = FileSurvey()
    for place, row in opened.rows():
        record, tool = opened.read(place, row)
        if not found.rollouts:
            found.tool = tool
            # Sampling, model and environment, which an episode of verifiers 0.4 names.
            traces = row.get("traces")
            trace = traces[0] if isinstance(traces, list) and traces else None
            if isinstance(trace, Mapping):
                environment, agent = row.get("env"), trace.get("agent")
                if isinstance(environment, Mapping) and (env_id := str(environment.get("id") or "")):
                    found.environments[env_id] += 1
                config = agent.get("config") if isinstance(agent, Mapping) else None
                config = config if isinstance(config, Mapping) else {}
                if isinstance(sampling := config.get("sampling"), Mapping):
                    found.sampling = sampling
                if model := str(config.get("model") or ""):
                    found.policies[model] += 1
        elif tool != found.tool:
            raise BadFile(f"{place}: {tool}, but earlier rows are {found.tool}")
        found.rollouts += 1
        counters = (found.policies, found.environments, found.hashes)
        for counter, value in zip(counters, (record.policy, record.environment, record.content_hash), strict=True):
            if value:
                counter[value] += 1
        task = record.task
        found.tasks.add((task.split, task.index, task.seed) if task else (found.rollouts,))
        if record.status is not RolloutStatus.COMPLETED:
            found.failed += 1
            found.zeros += row.get("reward") == 0
            continue
        found.completed += 1
        for name, reward in record.rewards.items():
            weight = found.weights.setdefault(name, reward.weight)
            if weight != reward.weight:
                raise BadFile(f"{place}: the weight of {name} is {reward.weight:g}, but {weight:g} in an earlier row")
        names, metrics = set(record.rewards), set(record.metrics)
        found.common = names if found.common is None else found.common & names
        found.metrics = metrics if found.metrics is None else found.metrics & metrics
    if not found.rollouts:
        raise BadFile("the file holds no rollouts")
    metadata = opened.metadata
    for counter, key in ((found.policies, "model"), (found.environments, "env_id")):
        if isinstance(named := metadata.get(key), str) and named and not counter:
            counter[named[:300]] += 1
    if isinstance(sampling := metadata.get("sampling_args"), Mapping):
        found.sampling = sampling
    found.main_policy = found.policies.most_common(1)[0][0] if found.policies else ""
    return found


@dataclass(frozen=True, slots=True)
class ImportedColumns:
    """The reward columns of an imported run."""

    weights: Mapping[str, float]
    source: str
    """`file`: named in the file; `metrics`: metrics that the environment has as columns; `reward`: only the sum."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Metric by column."""

    def fit(self, record: RolloutRecord) -> None:
        """Give a completed record exactly these columns. Other columns become metrics."""
        if record.status is not RolloutStatus.COMPLETED:
            return
        if self.source == "file":
            others = {name: reward.score for name, reward in record.rewards.items() if name not in self.weights}
            record.metrics = {**others, **record.metrics}
            record.rewards = {name: record.rewards[name] for name in self.weights}
        elif self.source == "metrics":
            scores = {name: record.metrics.pop(metric) for name, metric in self.renamed.items()}
            record.rewards = {name: RewardRecord(score=score or 0.0) for name, score in scores.items()}
        else:
            record.rewards = {"reward": RewardRecord(score=record.reward or 0.0)}


def choose_columns(found: FileSurvey, manifest: Manifest) -> ImportedColumns:
    declared = {column.name: column.weight for column in manifest.columns}
    if not found.completed:
        return ImportedColumns(declared, "file")
    if found.common:
        return ImportedColumns({name: weight for name, weight in found.weights.items() if name in found.common}, "file")
    by_name = {column_name(metric): metric for metric in sorted(found.metrics or ())}
    renamed = {name: by_name[name] for name in declared if name in by_name}
    if renamed:
        return ImportedColumns({name: declared[name] for name in renamed}, "metrics", renamed)
    return ImportedColumns({"reward": 1.0}, "reward")


def column_name(metric: str) -> str:
    """The column name that imported verifiers packages give a function of a rubric."""
    name = _NOT_A_WORD.sub("_", metric.lower()).strip("_") or "score"
    name = name if name[0].isalpha() else f"f_{name}"
    return name[:40] if name not in {"reward", "format", "length"} else f"{name}_score"
