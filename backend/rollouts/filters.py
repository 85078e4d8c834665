"""Filters and sort orders as SQL. They are SQLAlchemy expressions only: no text that a user typed becomes SQL.

Each subquery correlates only the rollout, because the statement around it may join the same tables for its order.
"""

import uuid
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    FromClause,
    Select,
    Text,
    and_,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from backend.detectors.tables import Flag
from backend.domain.rollouts.fields import FIELDS, Family, Field, FieldKind
from backend.domain.rollouts.filters import Node, leaves_of
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.graders.tables import Grade
from backend.review.tables import NEWEST_VERDICTS, VerdictRecord
from backend.rollouts.scope import FilterScope
from backend.rollouts.tables import LISTED, Group, Rollout, RolloutText, Task
from backend.web.filters import (
    TOLERANCE,
    Condition,
    compare_number,
    compare_word,
    join_conditions,
    parse_filter,
)
from backend.web.paging import read_cursor

LAST_PAGE = "end"
"""As a cursor: the last page."""
MAX_SEARCHED = 1_000_000
"""Characters of a conversation that text search covers."""
SAME_REWARD = 1e-6
"""Rewards of a group whose spread is no larger count as equal."""
_LAST_WORD = "\U0010ffff"
"""Sorts after every stored word."""
_UNINDEXED = frozenset({FIELDS["text"], FIELDS["group"]})


@dataclass(frozen=True)
class Selection:
    """A filter and a sort order over the rollouts of one run."""

    scope: FilterScope
    expression: str
    tree: Node | None
    sort: str
    sort_field: Field
    is_descending: bool
    backwards: bool = False
    """Read from the end, or from `start`, towards the beginning."""
    start: tuple[Any, ...] | None = None
    """The key and `seq` of the rollout to start after."""

    @cached_property
    def fields(self) -> frozenset[Field]:
        """Fields that the filter reads."""
        return frozenset(leaf.field for leaf in leaves_of(self.tree))

    @property
    def is_expensive(self) -> bool:
        """Whether the filter reads more than the covering index of lists: metrics, conversations or whole groups."""
        return any(
            field.family is Family.METRIC or field in _UNINDEXED or not set(field.stored) <= set(LISTED)
            for field in self.fields
        )

    @cached_property
    def conditions(self) -> list[Condition]:
        return [condition_of(self.tree, self.scope)] if self.tree else []

    @cached_property
    def key(self) -> ColumnElement[Any]:
        """The sort key, never null: rollouts without a value come last in both directions."""
        value = self._key_and_joins[0]
        if self.sort_field.name == "seq":
            return value
        if self.sort_field.kind is FieldKind.CHOICE:
            return func.coalesce(cast(value, Text), "" if self.is_descending else _LAST_WORD)
        return func.coalesce(value, cast(literal("-infinity" if self.is_descending else "infinity"), Double))

    @cached_property
    def rows(self) -> Select[tuple[uuid.UUID, int, Any]]:
        """`id`, `seq` and `key` of all rollouts of the run, unfiltered and unsorted."""
        statement = select(Rollout.id, Rollout.seq, self.key.label("key")).where(Rollout.run_id == self.scope.run.id)
        for target, condition in self._key_and_joins[1]:
            statement = statement.outerjoin(target, condition)
        return statement

    def by(self, found: FromClause | None = None) -> list[ColumnElement[Any]]:
        """The ORDER BY, of rollouts or of the result `found` of `rows`."""
        key, seq = (self.key, Rollout.seq.expression) if found is None else (found.c.key, found.c.seq)
        ends = [seq] if self.sort_field.name == "seq" else [key, seq]
        return [end.desc() if self.is_descending is not self.backwards else end.asc() for end in ends]

    def past(self, found: FromClause | None = None) -> Condition:
        """Rollouts after `start`; before it when reading backwards."""
        if self.start is None:
            return true()
        key, seq = (self.key, Rollout.seq.expression) if found is None else (found.c.key, found.c.seq)
        falls = self.is_descending is not self.backwards
        after_seq: Condition = seq < self.start[1] if falls else seq > self.start[1]
        if self.sort_field.name == "seq":
            return after_seq
        return or_(key < self.start[0] if falls else key > self.start[0], and_(key == self.start[0], after_seq))

    @cached_property
    def _key_and_joins(self) -> tuple[ColumnElement[Any], tuple[tuple[Any, Condition], ...]]:
        """The value to sort by and the outer joins that it needs, at most one row each."""
        scope, field = self.scope, self.sort_field
        match field.name if field.family is Family.ROLLOUT else field.family:
            case "seq":
                return Rollout.seq.expression, ()
            case "task" | "split":
                column: Any = cast(Task.index, Double) if field.name == "task" else Task.split
                own_group = and_(Group.run_id == scope.run.id, Group.id == Rollout.group_id)
                return column, ((Group, own_group), (Task, Task.id == Group.task_id))
            case "flag":
                worst = select(Flag.rollout_id, func.max(Flag.score).label("score"))
                worst = worst.where(Flag.run_id == scope.run.id, Flag.rollout_id.is_not(None))
                flagged = worst.group_by(Flag.rollout_id).subquery()
                return cast(flagged.c.score, Double), ((flagged, flagged.c.rollout_id == Rollout.id),)
            case "verdict":
                latest = NEWEST_VERDICTS.where(VerdictRecord.run_id == scope.run.id).subquery()
                return latest.c.verdict, ((latest, latest.c.rollout_id == Rollout.id),)
            case Family.JUDGE:
                return cast(Grade.score, Double), ((Grade, and_(*grade_of(scope, field))),)
            case Family.QUESTION:
                value: Any = cast(Grade.score, Double) if field.kind is FieldKind.NUMBER else Grade.answer
                return value, ((Grade, and_(*grade_of(scope, field))),)
            case _ if field.kind is FieldKind.YES_NO:
                return case((_column(field), 1.0), else_=0.0), ()
            case _ if field.kind is FieldKind.CHOICE:
                return _column(field), ()
            case _:
                return number_of(field, scope), ()


def select_rollouts(
    scope: FilterScope,
    expression: str | None,
    sort: str = "-seq",
    *,
    cursor: str | None = None,
    backwards: bool = False,
) -> Selection:
    """Parse a filter, a sort order and where to start. Raises WrongFilter, or InvalidInput for the other two."""
    field = FIELDS["seq"] if sort.removeprefix("-") == "seq" else scope.fields.get(sort.removeprefix("-"))
    if field is None or not field.is_sortable:
        possible = ", ".join(scope.sortable[:60])
        raise InvalidInput(fields={"sort": f"Sort by one of {possible}. Put `-` in front for descending order."})
    tree = parse_filter(expression, scope.fields)
    selection = Selection(scope, (expression or "").strip(), tree, sort, field, sort.startswith("-"), backwards)
    if not cursor or cursor == LAST_PAGE:
        return selection
    return replace(selection, start=tuple(read_cursor(cursor, (selection.key, Rollout.seq))))


def condition_of(node: Node, scope: FilterScope) -> Condition:
    return join_conditions(node, lambda field, operator, values: _compare(field, operator, values, scope))


def number_of(field: Field, scope: FilterScope) -> ColumnElement[float]:
    """A number in the rollout's own row as a double; null where it has none."""
    if field.family is Family.COLUMN:
        return cast(Rollout.columns[scope.run.columns.index(field.key) + 1], Double)
    if field.family is Family.METRIC:
        metric = Rollout.metrics[field.key]
        return case((func.jsonb_typeof(metric) == "number", cast(metric.astext, Double)))
    return cast(_column(field), Double)


def _column(field: Field) -> Any:
    """The stored column of a field of every run, or the sum of its columns."""
    first, *others = (getattr(Rollout, name) for name in field.stored)
    for other in others:
        first = first + other
    return first


def _compare(field: Field, operator: str, values: tuple[Any, ...], scope: FilterScope) -> Condition:
    """Compare a field with values. The operator `has`: whether the rollout has a value."""
    match field.name if field.family is Family.ROLLOUT else field.family:
        case "group" | "split" | "task" | "environment" if operator == "has":
            return true()
        case "text" if operator == "has":
            return Rollout.turns > 0
        case "flag":
            visible = Flag.detector.not_in(scope.hidden) if scope.hidden else true()
            own = (Flag.run_id == scope.run.id, Flag.rollout_id == Rollout.id)
            return exists().where(*own, compare_word(Flag.detector, operator, values), visible).correlate(Rollout)
        case "verdict":
            latest = NEWEST_VERDICTS.where(VerdictRecord.run_id == scope.run.id).subquery()
            return Rollout.id.in_(select(latest.c.rollout_id).where(compare_word(latest.c.verdict, operator, values)))
        case "split":
            return _of_task(scope, compare_word(Task.split, operator, values))
        case "task":
            return _of_task(scope, compare_number(cast(Task.index, Double), operator, values, tolerance=0))
        case "environment":
            of_name = select(EnvironmentVersion.id).join(EnvironmentVersion.environment)
            return _of_task(scope, Task.version_id.in_(of_name.where(compare_word(Environment.name, operator, values))))
        case "group":
            part = values[0].lower() if operator == "~" else None
            return _in_groups(scope, [kind for kind in field.choices if (part in kind if part else kind in values)])
        case "text":  # ignoring case; the index of texts lags behind the newest rollouts
            escaped = values[0].replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            pattern = func.lower(literal(f"%{escaped}%", Text))
            text = (RolloutText.run_id == scope.run.id, RolloutText.seq == Rollout.seq)
            is_found = exists().where(*text, RolloutText.body.like(pattern, escape="\\")).correlate(Rollout)
            if scope.indexed >= scope.run.next_seq - 1:
                return is_found
            is_in_body = body_of(Rollout.messages).like(pattern, escape="\\")
            return or_(is_found, and_(Rollout.seq > scope.indexed, is_in_body))
        case Family.JUDGE:
            score = compare_number(cast(Grade.score, Double), operator, values, tolerance=TOLERANCE)
            return exists().where(*grade_of(scope, field), score).correlate(Rollout)
        case Family.QUESTION:
            answer = (
                compare_number(cast(Grade.score, Double), operator, values, tolerance=0)
                if field.kind is FieldKind.NUMBER and operator != "has"
                else compare_word(Grade.answer, operator, values)
            )
            return exists().where(*grade_of(scope, field), answer).correlate(Rollout)
        case _ if field.kind is FieldKind.NUMBER:
            return compare_number(
                number_of(field, scope), operator, values, tolerance=0 if field.is_whole else TOLERANCE
            )
        case _ if field.kind is FieldKind.YES_NO:
            is_set: Condition = _column(field).is_(True)
            return is_set if values[0] else is_set.is_not(true())
        case _:
            return compare_word(_column(field), operator, values)


def body_of(messages: Any) -> ColumnElement[str]:
    """The text of messages in lower case, as the text index holds it."""
    message = func.jsonb_array_elements(messages).table_valued(column("value", JSONB)).alias("message")
    text = func.concat_ws("\n", message.c.value["reasoning"].astext, message.c.value["content"].astext)
    whole = select(func.string_agg(text, "\n")).select_from(message).scalar_subquery()
    return func.lower(func.left(func.coalesce(whole, ""), MAX_SEARCHED))


def _of_task(scope: FilterScope, condition: Condition) -> Condition:
    found = select(Group.id).join(Task, Task.id == Group.task_id)
    found = found.where(Group.run_id == scope.run.id, Group.id == Rollout.group_id, condition)
    return found.exists().correlate(Rollout)


def grade_of(scope: FilterScope, field: Field) -> tuple[Condition, ...]:
    """The grade of the rollout by the judge or question of the field."""
    grader = scope.judges[field.key] if field.family is Family.JUDGE else scope.questions[field.key][0]
    return Grade.run_id == scope.run.id, Grade.grader_id == grader, Grade.rollout_id == Rollout.id


def _in_groups(scope: FilterScope, kinds: list[str]) -> Condition:
    """Groups of several completed rollouts. Good and bad are separated at the middle of the run's reward range."""
    own = Rollout.__table__.alias("own")
    in_run = (own.c.run_id == scope.run.id, own.c.reward.is_not(None))
    low, high = func.min(own.c.reward), func.max(own.c.reward)
    middle = select((low + high) / 2).where(*in_run).scalar_subquery()
    conditions = {
        "mixed": high - low > SAME_REWARD,
        "all_good": and_(high - low <= SAME_REWARD, low >= middle),
        "all_bad": and_(high - low <= SAME_REWARD, low < middle),
    }
    if not kinds:
        return literal(False).is_(True)
    chosen = select(own.c.group_id).where(*in_run).group_by(own.c.group_id)
    return Rollout.group_id.in_(chosen.having(func.count() > 1, or_(*(conditions[kind] for kind in kinds))))
