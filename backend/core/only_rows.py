"""The limit of a shared link: some rows with what belongs to them, read-only. It adds to that of `row_access`."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial

from sqlalchemy import ColumnElement, Table, and_, event, false, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction
from sqlalchemy.orm.interfaces import ORMOption

from backend.core.row_access import OWNER, Columns, column_of, key_of, parent_of, row_conditions, ways_of
from backend.errors import NotAllowed

SharedRows = Mapping[str, frozenset[uuid.UUID]]
"""Ids by name of their table."""

_ONLY = "only_rows"


@contextmanager
def only_rows(session: Session, rows: SharedRows) -> Iterator[None]:
    """Within the block, find only these rows and what belongs to them through foreign keys, and refuse all changes.

    Rows that were loaded before are forgotten, so that none of them is found without a statement.
    """
    session.flush()
    session.expunge_all()
    session.info[_ONLY] = frozenset((name, ids) for name, ids in rows.items())
    try:
        yield
    finally:
        del session.info[_ONLY]
        session.expunge_all()


def _is_shared(table: Table, columns: Columns, rows: SharedRows) -> ColumnElement[bool]:
    """Return the condition for rows that are listed or belong to a listed one. All ways must lead to listed ones."""
    found: list[ColumnElement[bool]] = []
    if listed := rows.get(table.name):
        found.append(columns(key_of(table)).in_(listed))
    if OWNER not in table.c:
        conditions, known = [], []
        for column in ways_of(table):
            inner = parent_of(column).alias()
            keys = select(inner.c[key_of(parent_of(column)).name])
            condition = columns(column).in_(keys.where(_is_shared(parent_of(column), partial(column_of, inner), rows)))
            conditions.append(or_(columns(column).is_(None), condition) if column.nullable else condition)
            known.append(columns(column).is_not(None))
        found.append(and_(or_(*known), *conditions))
    return or_(*found) if found else false()


@lru_cache(maxsize=16)
def _conditions(rows: frozenset[tuple[str, frozenset[uuid.UUID]]]) -> tuple[ORMOption, ...]:
    listed = dict(rows)
    return row_conditions(lambda table, columns: _is_shared(table, columns, listed))


@event.listens_for(Session, "do_orm_execute")
def _read_only_these(state: ORMExecuteState) -> None:
    if (shared := state.session.info.get(_ONLY)) is None:
        return
    if not state.is_select:
        if state.is_insert or state.is_update or state.is_delete:
            raise NotAllowed("A shared link only reads.")
    elif not state.is_column_load and not state.is_relationship_load:
        state.statement = state.statement.options(*_conditions(shared))


@event.listens_for(Session, "before_flush")
def _refuse_changes(session: Session, context: UOWTransaction, rows: object) -> None:
    if _ONLY in session.info and (session.new or session.deleted or any(map(session.is_modified, session.dirty))):
        raise NotAllowed("A shared link only reads.")
