"""Where a page of a list begins, as text for an address. Knows no web framework: jobs read lists too."""

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement
from sqlalchemy.orm import InstrumentedAttribute

from backend.errors import InvalidInput

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """One page of a query."""

    items: list[T]
    next: str | None
    previous: str | None = None
    """The cursor of the page before, where the list can be read both ways."""


def make_cursor(*values: Any) -> str:
    text = json.dumps([_encode(value) for value in values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, columns: Sequence[ColumnElement[Any] | InstrumentedAttribute[Any]]) -> list[Any]:
    """One value for each of the columns that the list is ordered by."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        values = [_decode(part) for part in parts]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput("This page link is damaged; start from the first page.", {"after": "Unknown."}) from error
    if len(values) != len(columns) or not all(map(_fits, columns, values)):
        raise InvalidInput("This page link belongs to another list.", {"after": "Unknown."})
    return values


def _fits(column: ColumnElement[Any] | InstrumentedAttribute[Any], value: object) -> bool:
    wanted = column.type.python_type
    if issubclass(wanted, str):  # also enums, which are stored as text
        return isinstance(value, str)
    return isinstance(value, int | float if issubclass(wanted, float | Decimal) else wanted)


def _encode(value: Any) -> Any:
    match value:
        case datetime():
            return {"t": value.isoformat()}
        case uuid.UUID():
            return {"u": value.hex}
        case _:
            return value


def _decode(part: Any) -> Any:
    match part:
        case {"t": text}:
            return datetime.fromisoformat(text)
        case {"u": text}:
            return uuid.UUID(text)
        case str() | int() | float():
            return part
        case _:
            raise ValueError("not a cursor")
