"""The fields of runs as SQL: values of columns, conditions of filters, and sort keys."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Double, Text, case, cast, func, literal, select

from backend.domain.rollouts.fields import Family, Field, FieldKind
from backend.domain.rollouts.filters import Value
from backend.domain.runs.fields import FILTER_FIELDS, find_run_field
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.runs.tables import MetricPoint, Run
from backend.team.tables import Person
from backend.web.filters import (
    TOLERANCE,
    Condition,
    compare_date,
    compare_number,
    compare_word,
    join_conditions,
    parse_filter,
)
from backend.web.paging import Key

_LAST_WORD = "\U0010ffff"
"""Sorts after every stored word."""
_SECONDS = func.extract("epoch", func.coalesce(Run.ended_at, func.now()) - Run.started_at)
_AGE = func.extract("epoch", func.now() - Run.created_at) / 86400


def _json_number(column: Any, *path: str) -> ColumnElement[float]:
    """The number at a path of a JSON column; null if there is none or something else."""
    value = column[path]
    return case((func.jsonb_typeof(value) == "number", cast(value.astext, Double)))


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
        _json_number(Run.summary, "reward", "mean"),
        _json_number(Run.summary, "best", "heldout_reward"),
        _json_number(Run.summary, "reward"),
    ),
    "heldout": _latest("heldout/reward"),
    "steps": case((Run.kind == RunKind.TRAINING, _json_number(Run.progress, "done"))),
    "rollouts": _json_number(Run.summary, "completed"),
    "failed": _json_number(Run.summary, "failed"),
    "tokens": _json_number(Run.summary, "tokens_out"),
    "duration": cast(_SECONDS, Double),
    "seed": cast(Run.seed, Double),
    "learning_rate": _json_number(Run.configuration, "grpo", "learning_rate"),
    "kl_coefficient": _json_number(Run.configuration, "grpo", "beta"),
    "group_size": func.coalesce(
        _json_number(Run.configuration, "group_size"), _json_number(Run.configuration, "grpo", "group_size")
    ),
    "owner": select(Person.name).where(Person.id == Run.created_by).correlate(Run).scalar_subquery(),
    "project": select(Project.name).where(Project.id == Run.project_id).correlate(Run).scalar_subquery(),
    "note": func.nullif(Run.note, ""),
    "created": Run.created_at.expression,
    "started": Run.started_at.expression,
    "ended": Run.ended_at.expression,
    "age": cast(_AGE, Double),
}


def value_of(field: Field) -> ColumnElement[Any]:
    """The value of a field with one value, over runs joined with their version and environment."""
    return _latest(field.key) if field.family is Family.METRIC else _VALUES[field.name]


def condition_of(expression: str | None) -> Condition | None:
    """Return the condition of a filter, or None if it is empty. Raises WrongFilter."""
    tree = parse_filter(expression, FILTER_FIELDS)
    return join_conditions(tree, _compare) if tree else None


def sort_keys(sort: str) -> tuple[Key, Key]:
    """Return the keys of a sort order such as `-reward`: runs without a value come last. Raises InvalidInput."""
    name, is_descending = sort.removeprefix("-"), sort.startswith("-")
    field = find_run_field(name)
    if field is None or not field.is_sortable:
        possible = ", ".join(each.name for each in FILTER_FIELDS.values() if each.is_sortable)
        raise InvalidInput(
            fields={"sort": f"`{name[:60]}` is no field to sort by. Possible: {possible}. `-` in front: descending."}
        )
    value = value_of(field)
    if field.kind is FieldKind.NUMBER:
        value = func.coalesce(value, cast(literal("-infinity" if is_descending else "infinity"), Double))
    elif field.kind is FieldKind.DATE and name != "created":
        value = func.coalesce(value, func.to_timestamp(literal(0 if is_descending else 9_999_999_999)))
    elif field.kind in (FieldKind.WORD, FieldKind.CHOICE) and name != "name":
        value = func.coalesce(value, literal("" if is_descending else _LAST_WORD, Text))
    return Key(value, is_descending), Key(Run.id, is_descending)


def _compare(field: Field, operator: str, values: Sequence[Value]) -> Condition:
    given = tuple(values)
    if field.name == "tag":
        tag = func.unnest(Run.tags).table_valued("tag").alias("tag")
        match operator:
            case "has":
                return func.cardinality(Run.tags) > 0
            case "~":
                return select(literal(1)).select_from(tag).where(compare_word(tag.c.tag, "~", given)).exists()
            case _:
                overlaps: Condition = Run.tags.overlap(list(given))
                return overlaps
    if field.name == "pinned":
        return Run.is_pinned.is_(bool(given[0]))
    value = value_of(field)
    match field.kind:
        case FieldKind.NUMBER:
            return compare_number(value, operator, given, tolerance=0 if field.is_whole else TOLERANCE)
        case FieldKind.DATE:
            return compare_date(value, operator, given)
        case _:
            return compare_word(value, operator, given)
