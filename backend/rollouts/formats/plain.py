"""Plain JSONL: a record a line."""

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import orjson

from backend.domain.rollouts.conversation import read_messages
from backend.domain.rollouts.record import RolloutRecord
from backend.rollouts.formats.streams import Plain, write_lines

_ALIASES = {"completed": "completed", "success": "completed", "failed": "failed", "error": "failed"}


def write(out: IO[bytes], records: Iterable[Plain]) -> Iterator[None]:
    yield from write_lines(out, (orjson.dumps(record) for record in records))


def is_row(row: Mapping[str, Any]) -> bool:
    return "messages" in row


def read(row: Mapping[str, Any]) -> RolloutRecord:
    """Raises ValueError. Messages may be written as other tools do; what is empty counts as left out."""
    known = {name: value for name, value in row.items() if value is not None}
    known["messages"] = read_if_foreign(known["messages"])
    if isinstance(known.get("error"), str):
        known["error"] = {"message": known["error"]}
    if isinstance(known.get("status"), str):
        known["status"] = _ALIASES.get(known["status"], known["status"])
    return RolloutRecord.model_validate(known)


def read_if_foreign(messages: Any) -> Any:
    """Our own messages keep all that they carry."""
    if isinstance(messages, list) and all(_is_ours(message) for message in messages):
        return messages
    return read_messages(messages, "assistant")


def _is_ours(message: Any) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        return False
    return not {"tool_calls", "reasoning_content"} & message.keys()
