"""Statements sent to the database, for tests that count them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session


@contextmanager
def statements_of(session: Session) -> Iterator[list[str]]:
    sent: list[str] = []

    def take(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", take)
    try:
        yield sent
    finally:
        event.remove(connection, "before_cursor_execute", take)
