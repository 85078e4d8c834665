"""A filter's tree as conditions on rollouts, by SQLAlchemy expressions only: no text of a user's becomes SQL.

Negation is pushed down to the tests, and a negated test is `IS NOT true`: a missing value equals nothing. Each subquery
names the rollout as all that it shares with the statement round it, which may join the same tables for its order.
"""

import uuid
from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Double, Subquery, Text, and_, case, cast, exists, func, literal, or_, select, true
from sqlalchemy.dialects.postgresql import distinct_on

from backend.detectors.tables import Flag
from backend.domain.graders.settings import QUESTION_PREFIX
from backend.domain.rollouts.filter_tree import And, Comparison, Field, FieldKind, Has, Node, Not, Or, leaves_of
from backend.environments.tables import Environment, EnvironmentVersion
from backend.graders.tables import Grade
from backend.review.tables import VerdictRecord
from backend.rollouts.filter_fields import FilterScope, is_reserved
from backend.rollouts.tables import Group, Rollout, Task
from backend.rollouts.text_search import says

Condition = ColumnElement[bool]

HAIR = 1e-6
"""Stored rewards are single precision, so 0.1 is not 0.1: numbers with fractions are compared to six digits."""

SAME = 1e-6
"""Rewards of a group whose spread is no larger are the same."""

_WHOLE: dict[str, Any] = {
    "tokens": Rollout.tokens_out,
    "tokens_out": Rollout.tokens_out,
    "tokens_in": Rollout.tokens_in,
    "turns": Rollout.turns,
    "level": Rollout.level,
    "step": Rollout.training_step,
    "member": Rollout.member,
    "attempts": Rollout.attempts,
}
_FRACTIONS: dict[str, Any] = {
    "reward": Rollout.reward,
    "advantage": Rollout.advantage,
    "seconds": Rollout.policy_seconds + Rollout.environment_seconds,
    "policy_seconds": Rollout.policy_seconds,
    "environment_seconds": Rollout.environment_seconds,
    "queue": Rollout.queue_seconds,
    "cost": Rollout.cost,
}
WORDS: dict[str, Any] = {
    "status": Rollout.status,
    "stop_reason": Rollout.stop_reason,
    "error_kind": Rollout.error_kind,
    "phase": Rollout.phase,
}
_YES_NO: dict[str, Any] = {"truncated": Rollout.is_truncated, "demonstration": Rollout.is_demonstration}


def condition_of(node: Node, scope: FilterScope, *, negated: bool = False) -> Condition:
    """What the tree asks of a rollout of the scope's run."""
    match node:
        case Not(part):
            return condition_of(part, scope, negated=not negated)
        case And(parts) | Or(parts):
            join = and_ if isinstance(node, And) is not negated else or_
            return join(*(condition_of(part, scope, negated=negated) for part in parts))
        case Has(field):
            found = _has(field, scope)
        case Comparison(field, "!=", values):
            found, negated = _test(field, "=", values, scope), not negated
        case Comparison(field, operator, values):
            found = _test(field, operator, values, scope)
    return found.is_not(true()) if negated else found


def is_dear(node: Node | None, scope: FilterScope) -> bool:
    """Does it ask for what lies outside of the list's index: metrics, texts, whole groups?"""
    near = (
        _WHOLE.keys()
        | _FRACTIONS.keys()
        | WORDS.keys()
        | _YES_NO.keys()
        | {"flag", "verdict", "split", "task", "environment"}
    )
    near |= {*scope.run.columns, *(f"column.{name}" for name in scope.run.columns)}
    names = {leaf.field.name for leaf in leaves_of(node)}
    return any(name not in near and not name.startswith(("judge.", QUESTION_PREFIX)) for name in names)


def number_of(name: str, scope: FilterScope) -> ColumnElement[float]:
    """A number in the rollout's own row by its field's name, as a double; null where it has none."""
    if name in _WHOLE or name in _FRACTIONS:
        return cast(_WHOLE[name] if name in _WHOLE else _FRACTIONS[name], Double)
    column = name.removeprefix("column.")
    if column in scope.run.columns and not (column == name and is_reserved(name)):
        return cast(Rollout.columns[scope.run.columns.index(column) + 1], Double)
    metric = Rollout.metrics[name.removeprefix("metric.")]
    return case((func.jsonb_typeof(metric) == "number", cast(metric.astext, Double)))


def _has(field: Field, scope: FilterScope) -> Condition:
    match field.name:
        case "flag":
            return _flagged(scope, true())
        case "verdict":
            return _judged(scope, lambda verdict: true())
        case "group" | "split" | "task" | "environment":
            return true()
        case "text":
            return Rollout.turns > 0
        case "error":
            return Rollout.error_message.is_not(None)
        case name if name in WORDS:
            return _is_there(WORDS[name])
        case name if name in _YES_NO:
            return _as_condition(_YES_NO[name])
        case name if name.startswith("judge."):
            return _scored(scope, name, lambda score: score.is_not(None))
        case name if name.startswith(QUESTION_PREFIX):
            return _answered(scope, name, Grade.answer.is_not(None))
        case name:
            return number_of(name, scope).is_not(None)


def _is_there(column: Any) -> Condition:
    found: Condition = column.is_not(None)
    return found


def _as_condition(column: Any) -> Condition:
    found: Condition = column.is_(True)
    return found


def _test(field: Field, operator: str, values: tuple[Any, ...], scope: FilterScope) -> Condition:
    match field.name:
        case "flag":
            return _flagged(scope, _word(Flag.detector, operator, values))
        case "verdict":
            return _judged(scope, lambda verdict: _word(verdict, operator, values))
        case "split":
            return _of_task(scope, _word(Task.split, operator, values))
        case "task":
            return _of_task(scope, _number(cast(Task.index, Double), operator, values, hair=0))
        case "environment":
            of_name = select(EnvironmentVersion.id).join(EnvironmentVersion.environment)
            return _of_task(scope, Task.version_id.in_(of_name.where(_word(Environment.name, operator, values))))
        case "group":
            return _grouped(scope, [kind for kind in field.choices if _fits(kind, operator, values)])
        case "text":
            return says(scope.run, values[0], scope.indexed)
        case "error":
            return Rollout.error_message.icontains(values[0], autoescape=True)
        case name if name in _YES_NO:
            return _as_condition(_YES_NO[name]) if values[0] else _as_condition(_YES_NO[name]).is_not(true())
        case name if name in WORDS:
            return _word(WORDS[name], operator, values)
        case name if name.startswith("judge."):
            return _scored(scope, name, lambda score: _number(score, operator, values, hair=HAIR))
        case name if name.startswith(QUESTION_PREFIX) and field.kind is FieldKind.NUMBER:
            return _answered(scope, name, _number(cast(Grade.score, Double), operator, values, hair=0))
        case name if name.startswith(QUESTION_PREFIX):
            return _answered(scope, name, _word(Grade.answer, operator, values))
        case name:
            hair = 0 if name in _WHOLE else HAIR
            return _number(number_of(name, scope), operator, values, hair=hair)


def _number(value: ColumnElement[float], operator: str, values: tuple[Any, ...], *, hair: float) -> Condition:
    wanted: float = values[0]
    wide = abs(wanted) * hair
    match operator:
        case "in":
            return or_(*(_number(value, "=", (each,), hair=hair) for each in values))
        case "=" if wide:
            return value.between(wanted - wide, wanted + wide)
        case "=":
            return value == wanted
        case "<":
            return value < wanted - wide
        case "<=":
            return value <= wanted + wide
        case ">":
            return value > wanted + wide
        case _:
            return value >= wanted - wide


def _word(column: Any, operator: str, values: tuple[Any, ...]) -> Condition:
    found: Condition
    if operator == "~":
        found = cast(column, Text).icontains(values[0], autoescape=True)
    else:
        found = column.in_(values) if operator == "in" else column == values[0]
    return found


def _fits(kind: str, operator: str, values: tuple[Any, ...]) -> bool:
    return values[0].lower() in kind if operator == "~" else kind in values


def _flagged(scope: FilterScope, condition: Condition) -> Condition:
    seen = Flag.detector.not_in(scope.unseen) if scope.unseen else true()
    own = (Flag.run_id == scope.run.id, Flag.rollout_id == Rollout.id)
    return exists().where(*own, condition, seen).correlate(Rollout)


def _judged(scope: FilterScope, condition: Callable[[Any], Condition]) -> Condition:
    newest = newest_verdicts(scope.run.id)
    return Rollout.id.in_(select(newest.c.rollout_id).where(condition(newest.c.verdict)))


def newest_verdicts(run_id: uuid.UUID) -> Subquery:
    """The verdict that counts, by rollout. People give few, so all of a run are looked at once."""
    return (
        select(VerdictRecord.rollout_id, VerdictRecord.verdict)
        .where(VerdictRecord.run_id == run_id, VerdictRecord.rollout_id.is_not(None))
        .where(VerdictRecord.taken_back_at.is_(None))
        .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.rollout_id))
        .subquery("newest_verdicts")
    )


def _of_task(scope: FilterScope, condition: Condition) -> Condition:
    found = select(Group.id).join(Task, Task.id == Group.task_id)
    found = found.where(Group.run_id == scope.run.id, Group.id == Rollout.group_id, condition)
    return found.exists().correlate(Rollout)


def _scored(scope: FilterScope, name: str, condition: Callable[[ColumnElement[float]], Condition]) -> Condition:
    judge_id = scope.judges[name.removeprefix("judge.")]
    found = exists().where(
        Grade.run_id == scope.run.id,
        Grade.grader_id == judge_id,
        Grade.rollout_id == Rollout.id,
        condition(cast(Grade.score, Double)),
    )
    return found.correlate(Rollout)


def _answered(scope: FilterScope, name: str, condition: Condition) -> Condition:
    found = exists().where(
        Grade.run_id == scope.run.id,
        Grade.grader_id == scope.questions[name.removeprefix(QUESTION_PREFIX)].id,
        Grade.rollout_id == Rollout.id,
        condition,
    )
    return found.correlate(Rollout)


def _grouped(scope: FilterScope, kinds: list[str]) -> Condition:
    """Groups of several completed rollouts; what is good parts from what is bad in the middle of the run's rewards."""
    own = Rollout.__table__.alias("own")
    in_run = (own.c.run_id == scope.run.id, own.c.reward.is_not(None))
    low, high = func.min(own.c.reward), func.max(own.c.reward)
    middle = select((low + high) / 2).where(*in_run).scalar_subquery()
    wanted = {
        "mixed": high - low > SAME,
        "all_good": and_(high - low <= SAME, low >= middle),
        "all_bad": and_(high - low <= SAME, low < middle),
    }
    if not kinds:
        return literal(False).is_(True)
    chosen = select(own.c.group_id).where(*in_run).group_by(own.c.group_id)
    return Rollout.group_id.in_(chosen.having(func.count() > 1, or_(*(wanted[kind] for kind in kinds))))
