"""Make foreign text and JSON storable and sendable."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import orjson

JsonObject = dict[str, Any]
"""A decoded JSON object: an action, an observation's fields, a schema, a response."""
MAX_DEPTH = 100
"""Maximum depth of nested values. orjson and Postgres refuse much deeper ones."""


class InvalidAtLine(ValueError):
    """A text cannot be used, because of one of its lines."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(f"line {line}: {reason}")
        self.reason, self.line = reason, line


def plain_text(text: str) -> str:
    """Replace NUL, which Postgres cannot store, and lone surrogates, which UTF-8 cannot encode."""
    text = text.replace("\x00", "\N{SYMBOL FOR NULL}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def quoted(text: str) -> str:
    """Put a text in double quotes, as filters and TOML read it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def json_text(value: object) -> str:
    """Return JSON that Postgres accepts as jsonb, for any value."""
    try:
        text = orjson.dumps(value).decode()
        if "\\u0000" not in text:
            return text
    except TypeError:
        pass  # lone surrogates, integers above 64 bits, nested too deep
    return json.dumps(_plain(value, MAX_DEPTH), ensure_ascii=False, allow_nan=False)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities in JSON, as `parse_constant`: they would pass every bound."""
    raise ValueError(f"{name} is not a JSON value")


def _plain(value: object, depth: int) -> object:
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name), depth - 1) for field in fields}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    return plain_text(str(value))


def split_list(value: Any) -> Any:
    """Split text at commas and spaces, also inside a list. None is an empty list."""
    if isinstance(value, list):
        return [part for each in value for part in (split_list(each) if isinstance(each, str) else [each])]
    return value.replace(",", " ").split() if isinstance(value, str) else [] if value is None else value
