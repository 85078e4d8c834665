"""Cursor paging for lists and the JSON API: stable while rows are added, without counting."""

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel
from sqlalchemy import ColumnElement, Select, and_, or_
from sqlalchemy.orm import InstrumentedAttribute, Session

from backend.errors import InvalidInput

T = TypeVar("T")
LIMIT = 50
MAX_LIMIT = 500

After = Annotated[str | None, Query(description="The `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


class Page(BaseModel, Generic[T]):
    """The JSON answer of every list."""

    items: list[T]
    next: str | None = None
    """Pass it as `after` for the next page; null on the last."""


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """One page of a query."""

    items: list[T]
    next: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """One column of the order. The last key must be unique; none may be null."""

    column: InstrumentedAttribute[Any]
    descending: bool = True


def slice_of(
    session: Session, statement: Select[T], keys: Sequence[Key], *, after: str | None, limit: int = LIMIT
) -> Slice[T]:
    """The rows behind the cursor `after`, in the order of `keys`: `slice_of(session, select(Run), NEWEST, …)`."""
    if after:
        statement = statement.where(_behind(keys, read_cursor(after, [key.column for key in keys])))
    order = [key.column.desc() if key.descending else key.column.asc() for key in keys]
    rows = list(session.scalars(statement.order_by(*order).limit(limit + 1)))
    has_more = len(rows) > limit
    items = rows[:limit]
    return Slice(items, make_cursor(*(getattr(items[-1], key.column.key) for key in keys)) if has_more else None)


def _behind(keys: Sequence[Key], values: Sequence[Any]) -> ColumnElement[bool]:
    """(a, b) behind (x, y): a behind x, or a = x and b behind y."""
    branches = []
    for position, key in enumerate(keys):
        same = [keys[i].column == values[i] for i in range(position)]
        past = key.column < values[position] if key.descending else key.column > values[position]
        branches.append(and_(*same, past))
    return or_(*branches)


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
