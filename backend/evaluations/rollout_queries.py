"""Reading rollouts: filtered, sorted lists with a cursor; one rollout whole; its neighbours."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Double, Text, and_, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.db.models import EnvironmentVersion, Flag, Group, Rollout, Run, VerdictRecord
from backend.errors import InvalidInput, NotFound
from backend.evaluations.forms import RolloutFilter
from backend.web.paging import Slice, make_cursor, read_cursor

SORTS = ("seq", "reward", "advantage", "tokens", "turns", "level", "step", "seconds")
"""Orders that every run has; its reward columns come besides. `-` in front: descending."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A rollout as a list shows it."""

    rollout: Rollout
    columns: dict[str, float] = field(default_factory=dict)
    is_flagged: bool = False


def rollouts(session: Session, run: Run, wanted: RolloutFilter) -> Slice[Listed]:
    """A run's rollouts in the wanted order; those without a value come last."""
    is_flagged = select(Flag.id).where(Flag.rollout_id == Rollout.id).exists()
    key, is_descending = _order(run, wanted.sort)
    found = select(Rollout.id, Rollout.seq, key.label("key")).where(Rollout.run_id == run.id, *_conditions(run, wanted))
    if wanted.flagged:
        found = found.where(is_flagged)
    if wanted.after:
        found = found.where(_behind(key, is_descending, read_cursor(wanted.after, (key, Rollout.seq))))
    order = (key.desc(), Rollout.seq.desc()) if is_descending else (key.asc(), Rollout.seq.asc())
    part = found.order_by(*order).limit(wanted.limit + 1).subquery()  # the page first, its tasks after
    statement = (
        select(Rollout, is_flagged, part.c.key)
        .join(part, part.c.id == Rollout.id)
        .join(Rollout.group)
        .join(Group.task)
        .options(contains_eager(Rollout.group).contains_eager(Group.task))
    )
    ends = (part.c.key, part.c.seq)
    rows = session.execute(statement.order_by(*(end.desc() if is_descending else end.asc() for end in ends))).all()
    shown = rows[: wanted.limit]
    items = [Listed(rollout, columns_of(run, rollout), flagged) for rollout, flagged, _ in shown]
    last = shown[-1] if len(rows) > wanted.limit else None
    return Slice(items, make_cursor(last[2], last[0].seq) if last else None)


def columns_of(run: Run, rollout: Rollout) -> dict[str, float]:
    """Reward columns by name; none for a failed rollout."""
    return dict(zip(run.columns, rollout.columns or (), strict=False))


def newest(session: Session, run: Run, limit: int = 6) -> list[Listed]:
    """The newest rollout of each of the newest groups with its conversation, for the cards of a live page."""
    recent = (
        select(Rollout.id, Rollout.group_id, Rollout.seq)
        .where(Rollout.run_id == run.id)
        .order_by(Rollout.seq.desc())
        .limit(limit * 64)
        .subquery()
    )
    one_a_group = distinct_on(recent.c.group_id)
    chosen = select(recent.c.id).ext(one_a_group).order_by(recent.c.group_id, recent.c.seq.desc())
    statement = (
        select(Rollout)
        .options(undefer(Rollout.messages), joinedload(Rollout.group).joinedload(Group.task))
        .where(Rollout.id.in_(chosen))
        .order_by(Rollout.seq.desc())
        .limit(limit)
    )
    return [Listed(rollout, columns_of(run, rollout)) for rollout in session.scalars(statement)]


def get_rollout(session: Session, rollout_id: uuid.UUID) -> Rollout:
    """One rollout whole, with its task and its run's surroundings."""
    statement = (
        select(Rollout)
        .options(
            undefer(Rollout.opening),
            undefer(Rollout.steps),
            undefer(Rollout.messages),
            undefer(Rollout.tokens),
            joinedload(Rollout.group).joinedload(Group.task),
            joinedload(Rollout.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.policy),
        )
        .where(Rollout.id == rollout_id)
    )
    rollout = session.scalars(statement).one_or_none()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout


def siblings(session: Session, rollout: Rollout) -> Sequence[Rollout]:
    """All members of its group, itself too, in order."""
    statement = select(Rollout).where(Rollout.group_id == rollout.group_id).order_by(Rollout.member)
    return session.scalars(statement).all()


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rollouts stored before and after one, in its run."""

    previous: uuid.UUID | None
    next: uuid.UUID | None


def neighbours(session: Session, rollout: Rollout) -> Neighbours:
    def nearest(condition: ColumnElement[bool], order: ColumnElement[Any]) -> Any:
        statement = select(Rollout.id).where(Rollout.run_id == rollout.run_id, condition)
        return statement.order_by(order).limit(1).scalar_subquery()

    before = nearest(Rollout.seq < rollout.seq, Rollout.seq.desc())
    behind = nearest(Rollout.seq > rollout.seq, Rollout.seq.asc())
    return Neighbours(*session.execute(select(before, behind)).one())


def flags_of_rollout(session: Session, rollout_id: uuid.UUID) -> Sequence[Flag]:
    return session.scalars(select(Flag).where(Flag.rollout_id == rollout_id).order_by(Flag.score.desc())).all()


def verdicts_of_rollout(session: Session, rollout_id: uuid.UUID) -> Sequence[VerdictRecord]:
    """Newest first."""
    statement = (
        select(VerdictRecord)
        .options(joinedload(VerdictRecord.person))
        .where(VerdictRecord.rollout_id == rollout_id)
        .order_by(VerdictRecord.id.desc())
    )
    return session.scalars(statement).all()


def _conditions(run: Run, wanted: RolloutFilter) -> list[ColumnElement[bool]]:
    equal = {
        Rollout.status: wanted.status,
        Rollout.phase: wanted.phase,
        Rollout.training_step: wanted.step,
        Rollout.level: wanted.level,
        Rollout.stop_reason: wanted.stop_reason,
    }
    conditions: list[ColumnElement[bool]] = [column == value for column, value in equal.items() if value is not None]
    conditions += _between(_double(Rollout.reward), wanted.min_reward, wanted.max_reward)
    if wanted.column:
        conditions += _between(_column(run, wanted.column), wanted.min_column, wanted.max_column)
    if wanted.text:
        # as JSON writes it: a line break in the text is \n in the stored message
        written = json.dumps(wanted.text, ensure_ascii=False)[1:-1]
        conditions.append(cast(Rollout.messages, Text).icontains(written, autoescape=True))
    return conditions


def _between(value: ColumnElement[float], low: float | None, high: float | None) -> list[ColumnElement[bool]]:
    """Bounds widened by a hair: stored values are single precision, so that 0.1 is not 0.1."""
    bounds = []
    if low is not None:
        bounds.append(value >= low - abs(low) * 1e-6)
    if high is not None:
        bounds.append(value <= high + abs(high) * 1e-6)
    return bounds


def _double(column: Any) -> ColumnElement[float]:
    return cast(column, Double)


def _column(run: Run, name: str) -> ColumnElement[float]:
    if name not in run.columns:
        raise InvalidInput(fields={"column": f"This run has no reward column `{name}`: {', '.join(run.columns)}."})
    return _double(Rollout.columns[run.columns.index(name) + 1])


def _order(run: Run, sort: str) -> tuple[ColumnElement[Any], bool]:
    """The expression to sort by, never null, and whether it falls."""
    name = sort.removeprefix("-")
    is_descending = sort.startswith("-")
    if name == "seq":
        return Rollout.seq.expression, is_descending
    known: dict[str, ColumnElement[float]] = {
        "reward": _double(Rollout.reward),
        "advantage": _double(Rollout.advantage),
        "tokens": _double(Rollout.tokens_out),
        "turns": _double(Rollout.turns),
        "level": _double(Rollout.level),
        "step": _double(Rollout.training_step),
        "seconds": _double(Rollout.policy_seconds + Rollout.environment_seconds),
    }
    if name not in known and name not in run.columns:
        raise InvalidInput(fields={"sort": f"Sort by one of {', '.join([*SORTS, *run.columns])}; `-` in front falls."})
    value = known[name] if name in known else _column(run, name)
    last = cast(literal("-infinity" if is_descending else "infinity"), Double)
    return func.coalesce(value, last), is_descending


def _behind(key: ColumnElement[Any], is_descending: bool, cursor: list[Any]) -> ColumnElement[bool]:
    value, seq = cursor
    if is_descending:
        return or_(key < value, and_(key == value, Rollout.seq < seq))
    return or_(key > value, and_(key == value, Rollout.seq > seq))
