"""Orders of rollouts: by any field with one value, those without a value last, and a cursor in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, Text, and_, case, cast, func, literal, or_, select

from backend.detectors.tables import Flag
from backend.domain.graders.settings import QUESTION_PREFIX
from backend.domain.rollouts.filter_tree import FieldKind
from backend.errors import InvalidInput
from backend.graders.tables import Grade
from backend.rollouts.filter_fields import FilterScope
from backend.rollouts.filter_sql import WORDS, newest_verdicts, number_of
from backend.rollouts.tables import Group, Rollout, Task

END = "end"
"""As `before`: the last page."""
_LAST_WORD = "\U0010ffff"
"""Sorts behind every stored word."""
_UNSORTED = frozenset({"group", "text", "error"})


@dataclass(frozen=True, slots=True)
class Order:
    """The expression to sort by, never null, and which way."""

    key: ColumnElement[Any]
    is_descending: bool
    joins: tuple[tuple[Any, ColumnElement[bool]], ...] = ()
    """What the key needs beside the rollout's row: outer joins, at most one row each."""

    def joined(self, statement: Select[Any]) -> Select[Any]:
        for target, condition in self.joins:
            statement = statement.outerjoin(target, condition)
        return statement

    def by(self, key: ColumnElement[Any], seq: ColumnElement[int], *, backwards: bool = False) -> list[Any]:
        falls = self.is_descending is not backwards
        ends = (seq,) if key is seq else (key, seq)
        return [end.desc() if falls else end.asc() for end in ends]

    def past(self, cursor: Sequence[Any], *, backwards: bool = False, found: Any = None) -> ColumnElement[bool]:
        """Behind the cursor; before it, when going backwards. Of rollouts, or of what was `found` with key and seq."""
        key: ColumnElement[Any] = self.key if found is None else found.c.key
        number: ColumnElement[int] = Rollout.seq.expression if found is None else found.c.seq
        value: Any = cursor[0]
        seq: int = cursor[1]
        falls = self.is_descending is not backwards
        if self.key is Rollout.seq.expression:
            return number < seq if falls else number > seq
        if falls:
            return or_(key < value, and_(key == value, number < seq))
        return or_(key > value, and_(key == value, number > seq))


def sortable(scope: FilterScope) -> list[str]:
    """Every name to sort by."""
    return ["seq", *(name for name in scope.fields if name not in _UNSORTED)]


def order_of(scope: FilterScope, sort: str) -> Order:
    name, falls = sort.removeprefix("-"), sort.startswith("-")
    if name == "seq":
        return Order(Rollout.seq.expression, falls)
    field = scope.fields.get(name)
    if field is None or name in _UNSORTED:
        possible = ", ".join(sortable(scope)[:60])
        raise InvalidInput(fields={"sort": f"Sort by one of {possible}; `-` in front falls."})
    value, joins = _value(scope, name)
    return Order(_filled(value, falls, is_word=field.kind is FieldKind.CHOICE), falls, joins)


def _filled(value: ColumnElement[Any], falls: bool, *, is_word: bool) -> ColumnElement[Any]:
    """Never null: what has no value comes last, whichever way."""
    if is_word:
        return func.coalesce(cast(value, Text), "" if falls else _LAST_WORD)
    return func.coalesce(value, cast(literal("-infinity" if falls else "infinity"), Double))


def _value(scope: FilterScope, name: str) -> tuple[ColumnElement[Any], tuple[Any, ...]]:
    match name:
        case "task" | "split":
            column: Any = cast(Task.index, Double) if name == "task" else Task.split
            own_group = and_(Group.run_id == scope.run.id, Group.id == Rollout.group_id)
            return column, ((Group, own_group), (Task, Task.id == Group.task_id))
        case "flag":
            worst = func.max(Flag.score).label("score")
            found = select(Flag.rollout_id, worst).where(Flag.run_id == scope.run.id, Flag.rollout_id.is_not(None))
            flagged = found.group_by(Flag.rollout_id).subquery()
            return cast(flagged.c.score, Double), ((flagged, flagged.c.rollout_id == Rollout.id),)
        case "verdict":
            newest = newest_verdicts(scope.run.id)
            return newest.c.verdict, ((newest, newest.c.rollout_id == Rollout.id),)
        case "truncated" | "demonstration":
            flag = Rollout.is_truncated if name == "truncated" else Rollout.is_demonstration
            return case((flag, 1.0), else_=0.0), ()
        case _ if name in WORDS:
            return WORDS[name], ()
        case _ if name.startswith("judge."):
            judge_id = scope.judges[name.removeprefix("judge.")]
            same = and_(Grade.run_id == scope.run.id, Grade.grader_id == judge_id, Grade.rollout_id == Rollout.id)
            return cast(Grade.score, Double), ((Grade, same),)
        case _ if name.startswith(QUESTION_PREFIX):
            asked = scope.questions[name.removeprefix(QUESTION_PREFIX)]
            same = and_(
                Grade.run_id == scope.run.id,
                Grade.grader_id == asked.id,
                Grade.rollout_id == Rollout.id,
            )
            value: Any = cast(Grade.score, Double) if asked.is_number else Grade.answer
            return value, ((Grade, same),)
        case _:
            return number_of(name, scope), ()
