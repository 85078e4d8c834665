"""Text and JSON that others wrote, made storable and sendable."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

JsonObject = dict[str, Any]
"""A decoded JSON object: an action, an observation's fields, a schema, a response."""
MAX_DEPTH = 100
"""Of nested values; orjson and Postgres both refuse what is much deeper."""


def plain_text(text: str) -> str:
    """Without NUL, which Postgres cannot store, and without halves of surrogate pairs, which UTF-8 cannot say."""
    text = text.replace("\x00", "\N{SYMBOL FOR NULL}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def json_text(value: Any) -> str:
    """JSON that Postgres takes as jsonb, whatever the value holds."""
    try:
        text = orjson.dumps(value).decode()
    except TypeError:  # lone surrogates, integers above 64 bits, nested too deep
        return _careful_json(value)
    return _careful_json(value) if "\\u0000" in text else text


def _careful_json(value: Any) -> str:
    return json.dumps(_plain(value, MAX_DEPTH), ensure_ascii=False, allow_nan=False)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):  # Python refuses to write a number of thousands of digits
        return value if value.bit_length() <= 1024 else None
    if depth == 0:
        return "[nested too deep]"
    if isinstance(value, Mapping):
        return {plain_text(str(key)): _plain(item, depth - 1) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name), depth - 1) for field in fields}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    return plain_text(str(value))
