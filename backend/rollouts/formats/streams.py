"""What all writers share: files that are sent while they are written, facts about the run, and lossless extras."""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import IO, Any

CHUNK = 256 * 1024
Record = dict[str, Any]
"""A rollout as JSON: the fields of `RolloutRecord`."""
EXTRAS = "proctor"
"""Key under which other formats carry the fields that they have no place for."""
_NATIVE = frozenset({"messages", "reward"})
_ORDINARY = frozenset({"role", "content", "reasoning"})


@dataclass(frozen=True, slots=True)
class PlayedVersion:
    environment: str
    version: int
    content_hash: str
    weights: Mapping[str, float]
    """By reward column."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    id: str
    name: str
    environment: str
    version: int
    content_hash: str
    policy: str
    model: str
    """The policy's model at its endpoint; otherwise its name."""
    columns: tuple[str, ...]
    weights: tuple[float, ...]
    sampling: dict[str, object]
    tasks: int
    group_size: int
    created_at: str
    """ISO 8601."""
    started_at: str
    ended_at: str
    proctor: str
    """Version of Proctor."""
    where: str = ""
    """The filter that the rollouts passed."""
    versions: Mapping[str, PlayedVersion] = field(default_factory=dict)
    """Versions of a training run on several environments, by version id."""

    @property
    def as_json(self) -> dict[str, object]:
        names = ("id", "name", "environment", "version", "content_hash", "policy", "proctor", "where")
        facts: dict[str, object] = {name: getattr(self, name) for name in names}
        facts["weights"] = dict(zip(self.columns, self.weights, strict=True))
        if self.versions:
            facts["environments"] = [
                {"environment": each.environment, "version": each.version, "weights": dict(each.weights)}
                for each in self.versions.values()
            ]
        return facts


def extras_of(record: Record) -> Record:
    """Everything but the conversation and the reward. The messages too if they have fields that others would drop."""
    kept = {name: value for name, value in record.items() if name not in _NATIVE}
    if any(message.keys() - _ORDINARY for message in record["messages"]):
        kept["messages"] = record["messages"]
    return kept


def group_of(record: Record) -> str:
    """The rollout's group, unique in its run: steps and phases of a training run number their groups separately."""
    return f"{record['phase']}/{record.get('training_step') or 0}/{record['group']}"


def find_extras(value: object) -> Record | None:
    """The output of `extras_of`, if `value` is one."""
    if isinstance(value, Mapping) and str(value.get("schema", "")).startswith("proctor.rollout/"):
        return dict(value)
    return None


def epoch(moment: str | None) -> float:
    """Seconds since 1970 of an ISO 8601 time; 0 for none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


class Outgoing(io.RawIOBase):
    """Collects written bytes. It cannot seek, which zips and Parquet do not need."""

    def __init__(self) -> None:
        self.waiting = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        before = len(self.waiting)
        self.waiting += data
        return len(self.waiting) - before


def outgoing(write: Callable[..., Iterator[None]], *arguments: object) -> Iterator[bytes]:
    """Run a writer, a generator that yields now and then, and yield the bytes that it wrote."""
    out = Outgoing()
    for _ in write(out, *arguments):
        if len(out.waiting) >= CHUNK:
            yield bytes(out.waiting)
            out.waiting.clear()
    if out.waiting:
        yield bytes(out.waiting)


zip_to = partial(zipfile.ZipFile, mode="w", compression=zipfile.ZIP_DEFLATED, compresslevel=1)
"""Open a zip for writing."""


def entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open a file in the zip, of any size and without a time, so that the same rollouts give the same bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return archive.open(info, "w", force_zip64=True)


def write_lines(out: IO[bytes], lines: Iterable[bytes], every: int = 64) -> Iterator[None]:
    for number, line in enumerate(lines, 1):
        out.write(line + b"\n")
        if number % every == 0:
            yield
    yield
