"""Cursor paging: stable while rows are added, without counting. Free of the web framework, because jobs read lists."""

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import zip_longest
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, Row, Select, and_, literal, or_
from sqlalchemy.orm import InstrumentedAttribute, Session

from backend.errors import InvalidInput

T = TypeVar("T")
Column = ColumnElement[Any] | InstrumentedAttribute[Any]
LIMIT = 50
MAX_LIMIT = 500

After = Annotated[str | None, Field(description="The `next` of the page before.")]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class Page(BaseModel, Generic[T]):
    """The JSON response of every list."""

    items: list[T]
    next: str | None = None
    """Pass it as `after` for the next page; null on the last."""
    previous: str | None = None
    """Pass it as `before` for the page before, where the list can be read both ways; null on the first."""


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """One page of a query."""

    items: list[T]
    next: str | None
    previous: str | None = None
    """Cursor of the page before, where the list can be read both ways."""


@dataclass(frozen=True, slots=True)
class Key:
    """One column of the order. The last key must be unique; none may be null."""

    column: Column
    """An attribute of the listed rows, or an expression."""
    descending: bool = True


def slice_of(
    session: Session, statement: Select[T], keys: Sequence[Key], *, after: str | None, limit: int = LIMIT
) -> Slice[T]:
    """Return the rows behind the cursor `after` in the order of `keys`: `slice_of(session, select(Run), NEWEST, …)`."""
    found = rows_of(session, statement, keys, after=after, limit=limit)
    return Slice([row[0] for row in found.items], found.next)


def rows_of(
    session: Session, statement: Select[Any], keys: Sequence[Key], *, after: str | None, limit: int = LIMIT
) -> Slice[Row[Any]]:
    """Return rows as `slice_of` does, with all columns of the statement."""
    if after:
        values = [literal(value) for value in read_cursor(after, [key.column for key in keys])]
        branches = []  # (a, b) is behind (x, y) if a is behind x, or a = x and b is behind y
        for position, key in enumerate(keys):
            same = [keys[i].column == values[i] for i in range(position)]
            past = key.column < values[position] if key.descending else key.column > values[position]
            branches.append(and_(*same, past))
        statement = statement.where(or_(*branches))
    labels = [key.column.label(f"key_{place}") for place, key in enumerate(keys)]
    order = [label.desc() if key.descending else label.asc() for key, label in zip(keys, labels, strict=True)]
    rows = list(session.execute(statement.add_columns(*labels).order_by(*order).limit(limit + 1)))
    items = rows[:limit]
    return Slice(items, make_cursor(*items[-1][-len(keys) :]) if len(rows) > limit else None)


def make_cursor(*values: object) -> str:
    """Encode the values of one row as text for an address."""
    text = json.dumps(
        values,
        default=lambda value: {"t": value.isoformat()} if isinstance(value, datetime) else {"u": value.hex},
        separators=(",", ":"),
    )
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, columns: Sequence[Column]) -> list[Any]:
    """Decode one value for each column that the list is ordered by. Raises InvalidInput."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        values: list[Any] = []
        for part in parts:
            match part:
                case {"t": str(text)}:
                    values.append(datetime.fromisoformat(text))
                case {"u": str(text)}:
                    values.append(uuid.UUID(text))
                case str() | int() | float():
                    values.append(part)
                case _:
                    raise ValueError("not a cursor")
    except (ValueError, TypeError) as error:
        raise InvalidInput("This page link is damaged. Start from the first page.", {"after": "Unknown."}) from error
    for column, value in zip_longest(columns, values):
        kind = column.type.python_type if column is not None else type(None)
        stored = str if issubclass(kind, str) else int | float if issubclass(kind, float | Decimal) else kind
        if column is None or not isinstance(value, stored):  # enums are stored as text
            raise InvalidInput("This page link belongs to another list.", {"after": "Unknown."})
    return values
