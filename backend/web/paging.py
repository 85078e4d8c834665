"""Cursor paging for lists and the JSON API: stable while rows are added, without counting."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, Select, and_, or_
from sqlalchemy.orm import InstrumentedAttribute, Session

from backend.web.cursors import Slice, make_cursor, read_cursor

__all__ = ["After", "Key", "Limit", "Page", "Slice", "make_cursor", "read_cursor", "slice_of"]

T = TypeVar("T")
LIMIT = 50
MAX_LIMIT = 500

After = Annotated[str | None, Field(description="The `next` of the page before.")]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]


class Page(BaseModel, Generic[T]):
    """The JSON answer of every list."""

    items: list[T]
    next: str | None = None
    """Pass it as `after` for the next page; null on the last."""
    previous: str | None = None
    """Pass it as `before` for the page before, where the list can be read both ways; null on the first."""


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
