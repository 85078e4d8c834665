"""The formats that a run's rollouts leave in."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO

from backend.domain.vocabulary import Split
from backend.rollouts.formats import huggingface, inspect_log, plain, table, verifiers_v0, verifiers_v1
from backend.rollouts.formats.facts import RunFacts
from backend.rollouts.formats.streams import Plain, outgoing


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    HUGGINGFACE = "huggingface"
    VERIFIERS_V0 = "verifiers_v0"
    VERIFIERS_V1 = "verifiers_v1"
    INSPECT = "inspect"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a format is called, and its file."""

    label: str
    note: str
    ending: str
    media_type: str


KINDS = {
    ExportFormat.JSONL: Kind("JSONL", "a rollout a line, with everything", ".jsonl", "application/x-ndjson"),
    ExportFormat.PARQUET: Kind("Parquet", "for pandas, DuckDB, Polars", ".parquet", "application/vnd.apache.parquet"),
    ExportFormat.HUGGINGFACE: Kind("Hugging Face", "a folder for datasets, zipped", ".zip", "application/zip"),
    ExportFormat.VERIFIERS_V0: Kind("verifiers 0.3", "results.jsonl, metadata.json, zipped", ".zip", "application/zip"),
    ExportFormat.VERIFIERS_V1: Kind("verifiers 0.4", "traces.jsonl", ".jsonl", "application/x-ndjson"),
    ExportFormat.INSPECT: Kind("Inspect", "an .eval log", ".eval", "application/zip"),
}
NAMES = {ExportFormat.VERIFIERS_V1: "traces"}
Records = Callable[[Split | None], Iterable[Plain]]


def write_export(kind: ExportFormat, facts: RunFacts, splits: Sequence[Split], records: Records) -> Iterator[bytes]:
    """The bytes of the file; `records` reads the rollouts, of one split or of all."""

    def write(out: IO[bytes]) -> Iterator[None]:
        match kind:
            case ExportFormat.JSONL:
                return plain.write(out, records(None))
            case ExportFormat.PARQUET:
                return table.write(out, facts, records(None))
            case ExportFormat.HUGGINGFACE:
                return huggingface.write(out, facts, splits, records)
            case ExportFormat.VERIFIERS_V0:
                return verifiers_v0.write(out, facts, records(None))
            case ExportFormat.VERIFIERS_V1:
                return verifiers_v1.write(out, facts, records(None))
            case ExportFormat.INSPECT:
                return inspect_log.write(out, facts, records(None))

    return outgoing(write)


def file_name(kind: ExportFormat, facts: RunFacts) -> str:
    stem = NAMES.get(kind, f"{facts.environment}-{kind}")
    return f"{stem}-{facts.id.replace('-', '')[-8:]}{KINDS[kind].ending}"
