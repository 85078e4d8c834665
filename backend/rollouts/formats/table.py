"""Records as the rows of a table (pyarrow): plain values are columns, messages are lists of structures, and what has
no fixed form is JSON in a text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any

import orjson

from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.record import SCHEMA, RolloutRecord
from backend.rollouts.formats import plain
from backend.rollouts.formats.facts import RunFacts
from backend.rollouts.formats.streams import Plain

BATCH_ROWS = 256
_TEXTS = ("id", "run", "environment", "content_hash", "policy", "phase", "status", "stop_reason")
_WHOLE = (
    *("version", "group", "member", "training_step", "attempts"),
    *(name for name, field in MEASURED.items() if field.is_whole),
)
_NUMBERS = ("reward", "advantage", "cost", *(name for name, field in MEASURED.items() if not field.is_whole))
_TIMES = ("started_at", "ended_at")
_JSON = ("metrics", "opening", "steps", "tokens")
_TASK = {"task_split": "split", "task_index": "index", "task_level": "level", "task_seed": "seed"}
_SAID = ("role", "content", "reasoning")


def schema_of(columns: Sequence[str], facts: RunFacts) -> Any:
    import pyarrow as pa

    said = pa.struct([(name, pa.string()) for name in (*_SAID, "more")])
    fields = [(name, pa.string()) for name in _TEXTS]
    fields += [(name, pa.int64()) for name in _WHOLE]
    fields += [("task_split", pa.string()), *((name, pa.int64()) for name in list(_TASK)[1:])]
    fields += [("task_arguments", pa.string()), ("is_truncated", pa.bool_())]
    fields += [(name, pa.float64()) for name in _NUMBERS]
    if columns:
        values = pa.struct([(name, pa.float64()) for name in columns])
        fields += [("columns", values), ("weights", values)]
    fields += [("messages", pa.list_(said)), ("error_kind", pa.string()), ("error_message", pa.string())]
    fields += [(name, pa.string()) for name in _TIMES]
    fields += [(name, pa.string()) for name in _JSON]
    return pa.schema(fields, metadata={"proctor": orjson.dumps(facts.as_json), "schema": SCHEMA})


def flat(record: Plain) -> Plain:
    row = {name: record.get(name) for name in (*_TEXTS, *_WHOLE, *_NUMBERS, *_TIMES, "is_truncated")}
    task, error, earned = record["task"], record.get("error") or {}, record.get("rewards") or {}
    row |= {name: task[key] for name, key in _TASK.items()}
    row["task_arguments"] = _dumped(task.get("arguments") or None)
    row["columns"] = {name: value["score"] for name, value in earned.items()} or None
    row["weights"] = {name: value["weight"] for name, value in earned.items()} or None
    row["messages"] = [_said(message) for message in record["messages"]]
    row["error_kind"], row["error_message"] = error.get("kind"), error.get("message")
    return row | {name: _dumped(record.get(name)) for name in _JSON}


def _said(message: Mapping[str, Any]) -> Plain:
    more = {name: value for name, value in message.items() if name not in _SAID}
    return {**{name: message.get(name) for name in _SAID}, "more": _dumped(more or None)}


def _dumped(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def write(out: IO[bytes], facts: RunFacts, records: Iterable[Plain]) -> Iterator[None]:
    """One Parquet file, a row group a batch."""
    yield from write_rows(out, schema_of(facts.columns, facts), (flat(record) for record in records))


def write_rows(out: IO[bytes], schema: Any, rows: Iterable[Plain]) -> Iterator[None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    coming = iter(rows)
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        while batch := list(islice(coming, BATCH_ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
            yield
    yield


def is_row(row: Mapping[str, Any]) -> bool:
    return "messages" in row and "task_index" in row


def read(row: Mapping[str, Any]) -> RolloutRecord:
    """A row that `flat` made. Raises ValueError."""
    values = {name: row.get(name) for name in (*_TEXTS, *_WHOLE, *_NUMBERS, *_TIMES, "is_truncated")}
    values["task"] = {key: row.get(name) for name, key in _TASK.items()} | {
        "arguments": _loaded(row.get("task_arguments")) or {}
    }
    weights = row.get("weights") or {}
    scores = {name: score for name, score in (row.get("columns") or {}).items() if score is not None}
    values["rewards"] = {name: {"score": score, "weight": weights.get(name, 1.0)} for name, score in scores.items()}
    values["messages"] = [_heard(message) for message in row["messages"] or []]
    if row.get("error_kind"):
        values["error"] = {"kind": row["error_kind"], "message": row.get("error_message") or ""}
    return plain.read(values | {name: _loaded(row.get(name)) for name in _JSON})


def _heard(message: Mapping[str, Any]) -> Plain:
    more = _loaded(message.get("more")) or {}
    return {**{name: message[name] for name in _SAID if message.get(name) is not None}, **more}


def _loaded(text: Any) -> Any:
    if not isinstance(text, str):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"a column's JSON cannot be read: {error}") from error
