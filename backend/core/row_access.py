"""Which rows a request may see and change: those of the projects where its actor has a role.

A table with a `project_id` belongs to projects directly, every other one through its foreign keys, so a new table is
covered without a line here. `limit_to` holds for the rest of a session: statements then find no row of a hidden
project, wherever its table occurs in them, and a flush refuses changes that need a higher role in the row's project.
In the same way, they find no row that is marked as deleted, nor what belongs to one. Jobs have no such limit.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import BindParameter, Column, ColumnElement, Table, and_, event, not_, or_, select
from sqlalchemy.orm import (
    InstrumentedAttribute,
    LoaderCriteriaOption,
    Mapper,
    ORMExecuteState,
    Session,
    UOWTransaction,
)
from sqlalchemy.orm.interfaces import ORMOption
from sqlalchemy.orm.util import AliasedInsp
from sqlalchemy.sql.selectable import NamedFromClause

from backend.core.tables import Base
from backend.domain.projects.access import ProjectAccess
from backend.domain.vocabulary import Role
from backend.errors import NotAllowed

Hidden = frozenset[uuid.UUID]
"""Ids of hidden projects."""

Columns = Callable[[Column[Any]], ColumnElement[Any]]
"""The columns of a table in a mapped class or an alias."""

_LIMIT = "row_access"
OWNER = "project_id"
_MARK = "deletion_id"
_NOT_CONTENT = frozenset({"projects", "project_members"})
"""Tables of the projects themselves."""


@dataclass(slots=True)
class _Limit:
    access: ProjectAccess
    current: uuid.UUID | None
    """The project to which new rows belong. None: the default of their table."""
    hides_deleted: bool
    needed: Role = Role.VIEWER
    """The role that the request needs."""


def limit_to(
    session: Session, access: ProjectAccess, current: uuid.UUID | None = None, *, hides_deleted: bool = True
) -> None:
    """Limit the session to the rows that a person may see and change. New rows belong to the `current` project.

    `hides_deleted`: False while nothing is deleted, so that statements stay as they are.
    """
    session.info[_LIMIT] = _Limit(access, current, hides_deleted)


def hide_deleted(session: Session) -> None:
    """Hide deleted rows from now on: the session deleted some, or belongs to a job."""
    session.info.setdefault(_LIMIT, _Limit(ProjectAccess(Role.ADMIN), None, True)).hides_deleted = True


@contextmanager
def unlimited(session: Session) -> Iterator[None]:
    """See all rows inside of the block, also deleted ones and those of hidden projects. For reading and locking."""
    session.flush()
    limit = session.info.pop(_LIMIT, None)
    try:
        with session.no_autoflush:
            yield
    finally:
        if limit is not None:
            session.info[_LIMIT] = limit


def current_project(session: Session) -> uuid.UUID | None:
    """Return the project in which the session's person works, if they chose one."""
    limit: _Limit | None = session.info.get(_LIMIT)
    return limit.current if limit else None


def hidden_projects(session: Session) -> Hidden:
    limit: _Limit | None = session.info.get(_LIMIT)
    return limit.access.hidden if limit else frozenset()


def is_hidden(session: Session, project_id: uuid.UUID) -> bool:
    limit: _Limit | None = session.info.get(_LIMIT)
    return limit is not None and project_id in limit.access.hidden


def require_for_changes(session: Session, role: Role) -> None:
    """Let the session change only rows of projects in which its person has this role."""
    if limit := session.info.get(_LIMIT):
        limit.needed = role


def project_of(session: Session, row: object) -> uuid.UUID | None:
    """Return the project to which a row belongs, or None for rows of the whole team."""
    table: Table = row.__table__  # type: ignore[attr-defined]
    if table.name == "projects":
        return row.id  # type: ignore[attr-defined, no-any-return]
    if OWNER in table.c:
        return getattr(row, OWNER, None)
    mapper: Mapper[Any] = row.__mapper__  # type: ignore[attr-defined]
    for column in ways_of(table):
        value = getattr(row, mapper.get_property_by_column(column).key)
        if value is not None and (found := project_of_key(session, parent_of(column), value)):
            return found
    return None


def project_of_key(session: Session, table: Table, key: object) -> uuid.UUID | None:
    """Return the project of the row with this primary key, also of one that the session's person does not see."""
    if OWNER in table.c:
        return session.connection().scalar(select(table.c[OWNER]).where(key_of(table) == key))
    for column in ways_of(table):
        value = session.connection().scalar(select(column).where(key_of(table) == key))
        if value is not None and (found := project_of_key(session, parent_of(column), value)):
            return found
    return None


def is_taken(
    session: Session, column: InstrumentedAttribute[str], value: str, *, except_for: uuid.UUID | None = None
) -> bool:
    """Whether any row has this unique value, also one of a project that the session's person does not see."""
    table: Table = column.class_.__table__
    found = session.connection().scalar(select(key_of(table)).where(table.c[column.key] == value))
    return found is not None and found != except_for


@lru_cache(maxsize=1)
def owned_tables() -> frozenset[Table]:
    """Return the tables whose rows belong to projects: those with a `project_id`, and all that lead to one."""
    tables = [table for table in Base.metadata.sorted_tables if table.name not in _NOT_CONTENT]
    owned = {table for table in tables if OWNER in table.c}
    while True:
        further = {
            table
            for table in tables
            if any(each.column.table in owned for column in table.c for each in column.foreign_keys)
        }
        if further <= owned:
            return frozenset(owned)
        owned |= further


@lru_cache(maxsize=256)
def ways_of(table: Table) -> tuple[Column[Any], ...]:
    """Return the foreign keys by which rows of a table belong to projects: the shortest ones.

    Required ones come first. A row is hidden if any of them leads to a hidden one, so those to tables whose rows can be
    deleted count as well.
    """
    links = [column for column in table.c if column.foreign_keys and parent_of(column) in owned_tables()]
    links = [column for column in links if parent_of(column) is not table and column.name != _MARK]
    direct = [column for column in links if {OWNER, _MARK}.intersection(parent_of(column).c.keys())]
    return tuple(sorted(direct or links, key=lambda column: column.nullable or False))


def parent_of(column: Column[Any]) -> Table:
    return next(iter(column.foreign_keys)).column.table


def key_of(table: Table) -> Column[Any]:
    return next(iter(table.primary_key.columns))


def _visible(table: Table, columns: Columns, hidden: Hidden, hides_deleted: bool) -> ColumnElement[bool] | None:
    """Return the condition for rows of a table, whose columns a mapped class or an alias provides. None: all.

    Subqueries name plain tables, which get no condition themselves.
    """
    conditions: list[ColumnElement[bool]] = []
    if hides_deleted and _MARK in table.c:
        conditions.append(columns(table.c[_MARK]).is_(None))
    if OWNER in table.c:
        if hidden:
            conditions.append(columns(table.c[OWNER]).not_in(hidden))
        return and_(*conditions) if conditions else None
    for column in ways_of(table):
        parent = parent_of(column)
        inner = parent.alias()
        is_visible = _visible(parent, partial(column_of, inner), hidden, hides_deleted)
        if is_visible is None:
            continue
        condition = columns(column).not_in(select(inner.c[key_of(parent).name]).where(not_(is_visible)))
        conditions.append(or_(columns(column).is_(None), condition) if column.nullable else condition)
    return and_(*conditions) if conditions else None


def column_of(alias: NamedFromClause[Any], column: Column[Any]) -> ColumnElement[Any]:
    found: ColumnElement[Any] = alias.c[column.name]
    return found


def attribute_of(mapper: Mapper[Any], column: Column[Any]) -> ColumnElement[Any]:
    attribute: ColumnElement[Any] = getattr(mapper.class_, mapper.get_property_by_column(column).key)
    return attribute


class RowCondition(LoaderCriteriaOption):
    """A condition for a mapped class, and for its aliases: SQLAlchemy would compare the class's own columns there."""

    _cache_key_traversal = LoaderCriteriaOption._traverse_internals

    def _resolve_where_criteria(self, ext_info: Mapper[Any] | AliasedInsp[Any]) -> ColumnElement[bool]:
        condition = super()._resolve_where_criteria(ext_info)
        if isinstance(ext_info, AliasedInsp):
            condition = ext_info._adapter.traverse(condition)
        return condition


class _MarkCondition(RowCondition):
    """A condition without parameters, the same in every statement.

    Its class and mapper identify it in the cache of compiled statements: to walk the conditions of all tables takes
    0.7 ms a statement.
    """

    inherit_cache = True

    def _gen_cache_key(self, anon_map: Any, bindparams: list[BindParameter[Any]]) -> tuple[Any, ...]:
        return (type(self), self.entity)


@lru_cache(maxsize=64)
def _conditions(hidden: Hidden, hides_deleted: bool) -> tuple[ORMOption, ...]:
    option = RowCondition if hidden else _MarkCondition
    return row_conditions(lambda table, columns: _visible(table, columns, hidden, hides_deleted), option)


def row_conditions(
    condition_of: Callable[[Table, Columns], ColumnElement[bool] | None], option: type[RowCondition] = RowCondition
) -> tuple[ORMOption, ...]:
    """Return options of statements, with the condition of each table that belongs to projects. None: all rows."""
    options: list[ORMOption] = []
    for mapper in Base.registry.mappers:
        if (table := mapper.local_table) in owned_tables() and isinstance(table, Table):
            criteria = condition_of(table, partial(attribute_of, mapper))
            if criteria is not None:
                options.append(option(mapper.class_, criteria, include_aliases=True))
    return tuple(options)


@event.listens_for(Session, "do_orm_execute")
def _hide_rows(state: ORMExecuteState) -> None:
    limit: _Limit | None = state.session.info.get(_LIMIT)
    is_first = not state.is_column_load and not state.is_relationship_load
    if limit is None or not is_first or (limit.access.is_uniform and not limit.hides_deleted):
        return
    refused = limit.access.hidden
    if state.is_update or state.is_delete:  # statements that change many rows skip those that a flush would refuse
        refused |= {project for project, role in limit.access.roles.items() if not role.includes(limit.needed)}
    if (refused or limit.hides_deleted) and (state.is_select or state.is_update or state.is_delete):
        state.statement = state.statement.options(*_conditions(refused, limit.hides_deleted))


@event.listens_for(Session, "before_flush")
def _place_in_current_project(session: Session, context: UOWTransaction, rows: object) -> None:
    """New environments, policies and runs belong to the current project; a run with a source to the source's."""
    limit: _Limit | None = session.info.get(_LIMIT)
    for row in session.new if limit and limit.current else ():
        is_unplaced = OWNER in row.__table__.c and row.__table__.name not in _NOT_CONTENT and row.project_id is None
        if limit and is_unplaced and getattr(row, "source_run_id", None) is None:
            row.project_id = limit.current


@event.listens_for(Session, "after_flush")
def _refuse_changes(session: Session, context: UOWTransaction) -> None:
    """Refuse changes of rows whose project gives the person a lower role than the request needs."""
    limit: _Limit | None = session.info.get(_LIMIT)
    if limit is None or limit.access.is_uniform:
        return
    for row in (*session.new, *session.dirty, *session.deleted):
        if row.__table__ not in owned_tables() or (row in session.dirty and not session.is_modified(row)):
            continue
        if (project_id := project_of(session, row)) is None:  # a notice or job of the team
            continue
        role = limit.access.role_in(project_id)
        if role is None or not role.includes(limit.needed):
            name = limit.access.names.get(project_id, "its project")
            raise NotAllowed(f"This needs the role {limit.needed} in {name}; yours is {role or 'none'}.")
