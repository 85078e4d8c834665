"""The fields of runs as SQL: values of columns, conditions of filters, and sort keys."""

from typing import Any

from sqlalchemy import ColumnElement, Double, Text, case, cast, func, select

from backend.domain.runs.fields import RUN_FIELDS
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.runs.tables import MetricPoint, Run
from backend.team.tables import Person
from backend.web.item_table import ItemTable, json_number

_SECONDS = func.extract("epoch", func.coalesce(Run.ended_at, func.now()) - Run.started_at)
_AGE = func.extract("epoch", func.now() - Run.created_at) / 86400


def _latest(metric: str) -> ColumnElement[float]:
    points = select(MetricPoint.value).where(MetricPoint.run_id == Run.id, MetricPoint.name == metric)
    newest = points.order_by(MetricPoint.step.desc(), MetricPoint.attempt.desc()).limit(1)
    return newest.correlate(Run).scalar_subquery()


def _text(column: Any, *path: str) -> ColumnElement[str]:
    return func.nullif(column[path].astext, "")


_VALUES: dict[str, ColumnElement[Any]] = {
    "name": Run.name.expression,
    "status": cast(Run.status, Text),
    "kind": cast(Run.kind, Text),
    "environment": Environment.name.expression,
    "version": cast(EnvironmentVersion.number, Double),
    "policy": select(Policy.name).where(Policy.id == Run.policy_id).correlate(Run).scalar_subquery(),
    "base": case((_text(Run.configuration, "model", "source") == "base", _text(Run.configuration, "model", "base"))),
    "recipe": _text(Run.configuration, "recipe"),
    "reward": func.coalesce(
        json_number(Run.summary, "reward", "mean"),
        json_number(Run.summary, "best", "heldout_reward"),
        json_number(Run.summary, "reward"),
    ),
    "heldout": _latest("heldout/reward"),
    "steps": case((Run.kind == RunKind.TRAINING, json_number(Run.progress, "done"))),
    "rollouts": json_number(Run.summary, "completed"),
    "failed": json_number(Run.summary, "failed"),
    "tokens": json_number(Run.summary, "tokens_out"),
    "duration": cast(_SECONDS, Double),
    "seed": cast(Run.seed, Double),
    "learning_rate": json_number(Run.configuration, "grpo", "learning_rate"),
    "kl_coefficient": json_number(Run.configuration, "grpo", "beta"),
    "group_size": func.coalesce(
        json_number(Run.configuration, "group_size"), json_number(Run.configuration, "grpo", "group_size")
    ),
    "owner": select(Person.name).where(Person.id == Run.created_by).correlate(Run).scalar_subquery(),
    "project": select(Project.name).where(Project.id == Run.project_id).correlate(Run).scalar_subquery(),
    "note": func.nullif(Run.note, ""),
    "pinned": Run.is_pinned.expression,
    "created": Run.created_at.expression,
    "started": Run.started_at.expression,
    "ended": Run.ended_at.expression,
    "age": cast(_AGE, Double),
}


RUN_TABLE = ItemTable(
    RUN_FIELDS,
    Run,
    Run.id,
    _VALUES,
    drawn=frozenset(
        {"name", "status", "kind", "environment", "version", "policy", "reward", "progress", "tag", "created"}
    ),
    value_of_more=lambda field: _latest(field.key),
)
"""Statements join each run with its version and environment."""
