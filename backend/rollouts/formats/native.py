"""Our own formats: plain JSONL with one record per line, and Parquet tables.

In tables plain values are columns, messages are lists of structs, and values of no fixed form are JSON texts.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import orjson

from backend.domain.rollouts.conversation import read_messages
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.record import SCHEMA, RolloutRecord
from backend.rollouts.formats.streams import Record, RunFacts

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 256
_STATUSES = {"completed": "completed", "success": "completed", "failed": "failed", "error": "failed"}
_TEXTS = ("id", "run", "environment", "content_hash", "policy", "phase", "status", "stop_reason")
_INTEGERS = (
    *("version", "group", "member", "training_step", "attempts"),
    *(name for name, field in MEASURED.items() if field.is_whole),
)
_NUMBERS = ("reward", "advantage", "cost", *(name for name, field in MEASURED.items() if not field.is_whole))
_TIMES = ("started_at", "ended_at")
_PLAIN = (*_TEXTS, *_INTEGERS, *_NUMBERS, *_TIMES, "is_truncated")
_JSON = ("metrics", "opening", "steps", "tokens", "seats")
_TASK = {"task_split": "split", "task_index": "index", "task_level": "level", "task_seed": "seed"}
_MESSAGE = ("role", "content", "reasoning")


def read_line(row: Mapping[str, object]) -> RolloutRecord:
    """Read a plain record. Messages may be in the form of other tools; null fields count as absent.

    Raises ValueError.
    """
    known = {name: value for name, value in row.items() if value is not None}
    messages = known["messages"]
    is_native = isinstance(messages, list) and all(
        isinstance(message, Mapping)
        and isinstance(message.get("content"), str)
        and not {"tool_calls", "reasoning_content"} & message.keys()
        for message in messages
    )
    if not is_native:  # native messages keep all their fields
        known["messages"] = read_messages(messages, "assistant")
    if isinstance(error := known.get("error"), str):
        known["error"] = {"message": error}
    if isinstance(status := known.get("status"), str):
        known["status"] = _STATUSES.get(status, status)
    return RolloutRecord.model_validate(known)


def write_parquet(out: IO[bytes], facts: RunFacts, records: Iterable[Record]) -> Iterator[None]:
    """Write one Parquet file with a row group per batch."""
    import pyarrow as pa

    message = pa.struct([(name, pa.string()) for name in (*_MESSAGE, "more")])
    fields = [(name, pa.string()) for name in _TEXTS]
    fields += [(name, pa.int64()) for name in _INTEGERS]
    fields += [("task_split", pa.string()), *((name, pa.int64()) for name in list(_TASK)[1:])]
    fields += [("task_arguments", pa.string()), ("is_truncated", pa.bool_())]
    fields += [(name, pa.float64()) for name in _NUMBERS]
    if facts.columns:
        values = pa.struct([(name, pa.float64()) for name in facts.columns])
        fields += [("columns", values), ("weights", values)]
    fields += [("messages", pa.list_(message)), ("error_kind", pa.string()), ("error_message", pa.string())]
    fields += [(name, pa.string()) for name in (*_TIMES, *_JSON)]
    schema = pa.schema(fields, metadata={"proctor": orjson.dumps(facts.as_json), "schema": SCHEMA})
    yield from write_rows(out, schema, (table_row(record) for record in records))


def write_rows(out: IO[bytes], schema: "pa.Schema", rows: Iterable[Record]) -> Iterator[None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    coming = iter(rows)
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        while batch := list(islice(coming, BATCH_ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
            yield
    yield


def table_row(record: Record) -> Record:
    def dump(value: object) -> str | None:
        return None if value is None else orjson.dumps(value).decode()

    row: Record = {name: record.get(name) for name in _PLAIN}
    task, error, rewards = record["task"], record.get("error") or {}, record.get("rewards") or {}
    row |= {name: task[key] for name, key in _TASK.items()}
    row["task_arguments"] = dump(task.get("arguments") or None)
    row["columns"] = {name: value["score"] for name, value in rewards.items()} or None
    row["weights"] = {name: value["weight"] for name, value in rewards.items()} or None
    row["messages"] = []
    for message in record["messages"]:
        more = {name: value for name, value in message.items() if name not in _MESSAGE}
        row["messages"].append({**{name: message.get(name) for name in _MESSAGE}, "more": dump(more or None)})
    row["error_kind"], row["error_message"] = error.get("kind"), error.get("message")
    return row | {name: dump(record.get(name)) for name in _JSON}


def read_table_row(row: Mapping[str, Any]) -> RolloutRecord:
    """Read a row that `table_row` made. Raises ValueError."""

    def load(text: object) -> Any:
        if not isinstance(text, str):
            return None
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"a column's JSON cannot be read: {error}") from error

    values = {name: row.get(name) for name in _PLAIN}
    arguments = load(row.get("task_arguments")) or {}
    values["task"] = {key: row.get(name) for name, key in _TASK.items()} | {"arguments": arguments}
    weights = row.get("weights") or {}
    scores = {name: score for name, score in (row.get("columns") or {}).items() if score is not None}
    values["rewards"] = {name: {"score": score, "weight": weights.get(name, 1.0)} for name, score in scores.items()}
    values["messages"] = [
        {**{name: message[name] for name in _MESSAGE if message.get(name) is not None}, **(load(message["more"]) or {})}
        for message in ({"more": None, **message} for message in row["messages"] or [])
    ]
    if row.get("error_kind"):
        values["error"] = {"kind": row["error_kind"], "message": row.get("error_message") or ""}
    return read_line(values | {name: load(row.get(name)) for name in _JSON})
