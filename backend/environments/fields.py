"""The fields of environments as SQL."""

from typing import Any

from sqlalchemy import ColumnElement, Double, Select, Text, and_, cast, func, select
from sqlalchemy.orm import aliased

from backend.domain.environments.fields import ENVIRONMENT_FIELDS
from backend.environments.tables import Environment, EnvironmentVersion
from backend.projects.tables import Project
from backend.runs.tables import Run
from backend.team.tables import Person
from backend.web.item_table import ItemTable, json_number

_LATEST = aliased(EnvironmentVersion, name="latest")


def _of_runs(value: ColumnElement[Any]) -> ColumnElement[Any]:
    runs = select(value).select_from(Run).join(Run.version)
    return _of_environment(runs.where(EnvironmentVersion.environment_id == Environment.id))


def _of_environment(statement: Select[Any]) -> ColumnElement[Any]:
    return statement.correlate(Environment).scalar_subquery()


_VALUES: dict[str, ColumnElement[Any]] = {
    "name": Environment.name.expression,
    "version": cast(_LATEST.number, Double),
    "certificate": cast(_LATEST.certificate, Text),
    "levels": json_number(_LATEST.manifest, "proctor", "tasks", "levels"),
    "last_run": _of_runs(func.max(Run.created_at)),
    "runs": cast(_of_runs(func.count()), Double),
    "built_in": Environment.is_built_in.expression,
    "pinned": Environment.is_pinned.expression,
    "description": Environment.description.expression,
    "note": func.nullif(Environment.note, ""),
    "owner": _of_environment(select(Person.name).where(Person.id == Environment.created_by)),
    "project": _of_environment(select(Project.name).where(Project.id == Environment.project_id)),
    "changed": func.coalesce(_LATEST.published_at, Environment.created_at),
    "created": Environment.created_at.expression,
}
ENVIRONMENT_TABLE = ItemTable(
    ENVIRONMENT_FIELDS,
    Environment,
    Environment.id,
    _VALUES,
    drawn=frozenset({"name", "version", "certificate", "rewards", "levels", "last_run", "tag", "changed", "created"}),
)
"""Of statements from `select_environments`."""


def select_environments() -> Select[Environment]:
    numbers = select(func.max(EnvironmentVersion.number)).where(EnvironmentVersion.environment_id == Environment.id)
    of_latest = and_(_LATEST.environment_id == Environment.id, _LATEST.number == _of_environment(numbers))
    return select(Environment).outerjoin(_LATEST, of_latest)
