"""Find rows by their id or its last characters."""

import re
import uuid

from sqlalchemy import ColumnElement, Select, String, cast, func
from sqlalchemy.orm import InstrumentedAttribute, Session

_END = re.compile(r"[0-9a-f]{1,32}")


def parse_id(text: str) -> uuid.UUID | None:
    """Return a complete id, or None."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def find_by_end(
    session: Session, statement: Select[uuid.UUID], column: InstrumentedAttribute[uuid.UUID], text: str
) -> uuid.UUID | None:
    """Return the first id of an ordered `statement` that ends with `text`, at least 4 characters.

    Ids start with the time, so that neighbors share their start.
    """
    ends_so = ends_with(column, text)
    return None if ends_so is None else session.scalar(statement.where(ends_so).limit(1))


def ends_with(column: InstrumentedAttribute[uuid.UUID], text: str, *, shortest: int = 4) -> ColumnElement[bool] | None:
    """Return the condition that an id ends with `text`; None if that is not the end of an id, or too short."""
    end = text.replace("-", "").lower()
    if len(end) < shortest or not _END.fullmatch(end):
        return None
    return func.replace(cast(column, String), "-", "").endswith(end)
