"""Find rows by their id or its last characters."""

import re
import uuid

from sqlalchemy import Select, String, cast, func
from sqlalchemy.orm import InstrumentedAttribute, Session

_END = re.compile(r"[0-9a-f]{4,32}")


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
    end = text.replace("-", "").lower()
    if not _END.fullmatch(end):
        return None
    return session.scalar(statement.where(func.replace(cast(column, String), "-", "").endswith(end)).limit(1))
