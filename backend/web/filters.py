"""Parts of filters as SQL that lists of every noun share. Free of the web framework, because jobs read lists.

They are SQLAlchemy expressions only: no text that a user typed becomes SQL. Negation is pushed down to the comparisons,
and a negated comparison is `IS NOT true`: a missing value equals nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, or_, true

from backend.domain.rollouts.fields import Field
from backend.domain.rollouts.filters import And, Comparison, DateSpan, FilterError, Has, Node, Not, Or, Value, parse
from backend.errors import InvalidInput

Condition = ColumnElement[bool]
TOLERANCE = 1e-6
"""Stored rewards are single precision, so 0.1 is not 0.1: numbers with fractions are compared to six digits."""


class WrongFilter(InvalidInput):
    """A filter that cannot be parsed."""

    place: slice
    """The mistake within the expression."""


def parse_filter(expression: str | None, fields: Mapping[str, Field]) -> Node | None:
    """Parse an expression; None if it is empty. Raises WrongFilter."""
    try:
        return parse(expression or "", fields)
    except FilterError as error:
        wrong = WrongFilter(error.message, {"where": f"{error.message} (at character {error.start + 1})"})
        wrong.place = slice(error.start, error.end)
        raise wrong from error


def join_conditions(
    node: Node, compare: Callable[[Field, str, tuple[Value, ...]], Condition], *, negated: bool = False
) -> Condition:
    """Join the comparisons of a tree. `compare` makes one; the operator `has`: whether the row has a value."""
    match node:
        case Not(part):
            return join_conditions(part, compare, negated=not negated)
        case And(parts) | Or(parts):
            join = and_ if isinstance(node, And) is not negated else or_
            return join(*(join_conditions(part, compare, negated=negated) for part in parts))
        case Has(field):
            found = compare(field, "has", (True,))
        case Comparison(field, "!=", values):
            found, negated = compare(field, "=", values), not negated
        case Comparison(field, operator, values):
            found = compare(field, operator, values)
    return found.is_not(true()) if negated else found


def compare_number(
    value: ColumnElement[float], operator: str, values: tuple[Any, ...], *, tolerance: float
) -> Condition:
    bound: float = values[0]
    margin = abs(bound) * tolerance
    match operator:
        case "has":
            return value.is_not(None)
        case "in":
            return or_(*(compare_number(value, "=", (each,), tolerance=tolerance) for each in values))
        case "=" if margin:
            return value.between(bound - margin, bound + margin)
        case "=":
            return value == bound
        case "<":
            return value < bound - margin
        case "<=":
            return value <= bound + margin
        case ">":
            return value > bound + margin
        case _:
            return value >= bound - margin


def compare_word(column: Any, operator: str, values: tuple[Any, ...]) -> Condition:
    found: Condition = column.in_(values)
    if operator == "has":
        found = column.is_not(None)
    elif operator == "~":
        found = cast(column, Text).icontains(values[0], autoescape=True)
    return found


def compare_date(column: ColumnElement[Any], operator: str, values: tuple[Any, ...]) -> Condition:
    """A day counts as a whole: `<= 2026-11-01` includes it, `> 2026-11-01` begins the day after."""
    if operator == "has":
        return column.is_not(None)
    span: DateSpan = values[0]
    match operator:
        case "=":
            return and_(column >= span.start, column < span.end)
        case "<":
            return column < span.start
        case "<=":
            return column < span.end
        case ">":
            return column >= span.end
        case _:
            return column >= span.start
