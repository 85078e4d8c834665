"""Reading rollouts: filtered, sorted lists with a cursor; one rollout whole; its neighbours."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest
from backend.domain.graders.settings import GraderKind
from backend.domain.rollouts.filter_tree import FilterError, Node, leaves_of
from backend.domain.rollouts.filters import parse
from backend.domain.vocabulary import Verdict
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput, NotFound
from backend.graders.tables import Grade, Grader
from backend.review.tables import VerdictRecord
from backend.rollouts.counts import Matching, keep, kept, key_of
from backend.rollouts.filter_fields import FilterScope, scope_of
from backend.rollouts.filter_sql import condition_of, is_dear
from backend.rollouts.finished_run_index import Standing, standing_of
from backend.rollouts.ordering import END, Order, order_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.requests import RolloutFilter
from backend.runs.tables import Run
from backend.web.cursors import Slice, make_cursor, read_cursor

MOST_COUNTED = 5000
"""Rollouts that are counted by what was said in them."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A rollout as a list shows it."""

    rollout: Rollout
    columns: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Detectors that flagged it."""
    verdict: Verdict | None = None
    """The newest."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """Of judges, by name."""
    answers: dict[str, str | None] = field(default_factory=dict)
    """To questions, by name."""

    @property
    def is_flagged(self) -> bool:
        return bool(self.flags)


class WrongFilter(InvalidInput):
    """A filter that cannot be understood."""

    def __init__(self, expression: str, error: FilterError) -> None:
        super().__init__(error.message, {"where": f"{error.message} (at character {error.start + 1})"})
        self.expression = expression
        self.start, self.end = error.start, error.end


def condition_tree(scope: FilterScope, expression: str) -> Node | None:
    """The expression read; None for a blank one. Raises WrongFilter."""
    try:
        return parse(expression, scope.fields)
    except FilterError as error:
        raise WrongFilter(expression, error) from error


def condition(scope: FilterScope, expression: str) -> list[ColumnElement[bool]]:
    """What the expression asks of a rollout of the scope's run; nothing for a blank one. Raises WrongFilter."""
    tree = condition_tree(scope, expression)
    return [condition_of(tree, scope)] if tree else []


def matching(session: Session, run: Run, expression: str, *, for_learning: bool = False) -> Select[Any]:
    """The ids of the run's rollouts that pass a filter (`has flag and win = 0`), to be used in other statements."""
    asked = condition(scope_of(session, run, for_learning=for_learning), expression) if expression.strip() else []
    return select(Rollout.id).where(Rollout.run_id == run.id, *asked)


def rollouts(session: Session, run: Run, wanted: RolloutFilter, scope: FilterScope | None = None) -> Slice[Listed]:
    """A run's rollouts in the wanted order; those without a value come last."""
    scope = scope or scope_of(session, run)
    order = order_of(scope, wanted.sort)
    if standing := standing_of(
        session, scope, condition_tree(scope, wanted.expression), wanted.expression, wanted.sort
    ):
        return _cut(session, scope, order, wanted, standing)
    return _searched(session, scope, order, wanted)


def _searched(session: Session, scope: FilterScope, order: Order, wanted: RolloutFilter) -> Slice[Listed]:
    backwards, cursor = _cursor_of(wanted, order)
    found = _asked(scope, order, wanted)
    if cursor:
        found = found.where(order.past(cursor, backwards=backwards))
    found = found.order_by(*order.by(order.key, Rollout.seq.expression, backwards=backwards))
    return _slice(session, scope.run, session.execute(found.limit(wanted.limit + 1)).all(), wanted)


def _cut(
    session: Session, scope: FilterScope, order: Order, wanted: RolloutFilter, standing: Standing
) -> Slice[Listed]:
    backwards, cursor = _cursor_of(wanted, order)
    numbers = standing.part(order, wanted.sort, wanted.limit + 1, cursor[1] if cursor else None, backwards=backwards)
    if numbers is None:
        return _searched(session, scope, order, wanted)
    found = order.joined(select(Rollout.id, Rollout.seq, order.key.label("key")))
    rows = {
        row.seq: row for row in session.execute(found.where(Rollout.run_id == scope.run.id, Rollout.seq.in_(numbers)))
    }
    return _slice(session, scope.run, [rows[number] for number in numbers if number in rows], wanted)


def counted_rollouts(
    session: Session, run: Run, wanted: RolloutFilter, scope: FilterScope
) -> tuple[Slice[Listed], Matching | None]:
    """The same, and how many pass the filter; None without one. Where looking is dear, all is found in one look."""
    if not wanted.where:
        return rollouts(session, run, wanted, scope), None
    tree = condition_tree(scope, wanted.where)
    if wanted.where == wanted.expression and (standing := standing_of(session, scope, tree, wanted.where, wanted.sort)):
        return _cut(session, scope, order_of(scope, wanted.sort), wanted, standing), Matching(standing.count())
    key = key_of(session, scope, wanted.where, tree)
    if known := kept(key):
        return rollouts(session, run, wanted, scope), known
    if any(leaf.field.name == "text" for leaf in leaves_of(tree)):
        found, matching = rollouts(session, run, wanted, scope), _count_some(session, scope, wanted.where)
    elif is_dear(tree, scope):
        found, matching = _found_at_once(session, scope, wanted)
    else:
        found, matching = (
            rollouts(session, run, wanted, scope),
            Matching(count(session, run, wanted.where, scope)),
        )
    return found, keep(key, matching)


def total_of(session: Session, scope: FilterScope) -> int:
    """All rollouts of the run."""
    key = key_of(session, scope, "", None)
    return (kept(key) or keep(key, Matching(count(session, scope.run)))).count


def _count_some(session: Session, scope: FilterScope, expression: str) -> Matching:
    asked = condition(scope, expression)
    some = select(Rollout.id).where(Rollout.run_id == scope.run.id, *asked).limit(MOST_COUNTED + 1).subquery()
    found = session.scalar(select(func.count()).select_from(some)) or 0
    return Matching(min(found, MOST_COUNTED), is_more=found > MOST_COUNTED)


def _found_at_once(session: Session, scope: FilterScope, wanted: RolloutFilter) -> tuple[Slice[Listed], Matching]:
    order = order_of(scope, wanted.sort)
    backwards, cursor = _cursor_of(wanted, order)
    found = _asked(scope, order, wanted).cte("found")
    statement = select(found, select(func.count()).select_from(found).scalar_subquery().label("matching"))
    if cursor:
        statement = statement.where(order.past(cursor, backwards=backwards, found=found))
    key = found.c.seq if order.key is Rollout.seq.expression else found.c.key
    rows = session.execute(statement.order_by(*order.by(key, found.c.seq, backwards=backwards)).limit(wanted.limit + 1))
    page = rows.all()
    whole = page[0].matching if page else count(session, scope.run, wanted.where or "", scope)
    return _slice(session, scope.run, page, wanted), Matching(whole)


def _asked(scope: FilterScope, order: Order, wanted: RolloutFilter) -> Select[Any]:
    found = order.joined(select(Rollout.id, Rollout.seq, order.key.label("key")))
    return found.where(Rollout.run_id == scope.run.id, *condition(scope, wanted.expression))


def _cursor_of(wanted: RolloutFilter, order: Order) -> tuple[bool, list[Any] | None]:
    """Which way to read, and from where."""
    backwards = wanted.before is not None
    cursor = wanted.before if backwards else wanted.after
    if not cursor or cursor == END:
        return backwards, None
    return backwards, read_cursor(cursor, (order.key, Rollout.seq))


def cursor_at(session: Session, run: Run, wanted: RolloutFilter, scope: FilterScope, position: int) -> str | None:
    """The cursor behind so many rollouts of a list."""
    order = order_of(scope, wanted.sort)
    found = order.joined(select(order.key.label("key"), Rollout.seq))
    found = found.where(Rollout.run_id == run.id, *condition(scope, wanted.expression))
    found = found.order_by(*order.by(order.key, Rollout.seq.expression)).offset(position).limit(1)
    row = session.execute(found).one_or_none()
    return make_cursor(*row) if row else None


def _slice(session: Session, run: Run, rows: Sequence[Row[Any]], wanted: RolloutFilter) -> Slice[Listed]:
    """With cursors to where there is more: whoever came from one side can go back there."""
    backwards = wanted.before is not None
    shown = rows[: wanted.limit][:: -1 if backwards else 1]
    has_more = len(rows) > wanted.limit
    items = listed(session, run, [row.id for row in shown])
    ends = [make_cursor(row.key, row.seq) for row in (shown[0], shown[-1])] if shown else [None, None]
    if backwards:
        return Slice(items, None if wanted.before == END else ends[1], ends[0] if has_more else None)
    return Slice(items, ends[1] if has_more else None, ends[0] if wanted.after else None)


def listed(session: Session, run: Run, ids: Sequence[uuid.UUID]) -> list[Listed]:
    """These rollouts with their tasks and what was said of them, in the order given."""
    statement = (
        select(Rollout, *_said_of())
        .join(Rollout.group)
        .join(Group.task)
        .options(contains_eager(Rollout.group).contains_eager(Group.task))
        .where(Rollout.id.in_(ids))
    )
    found = {
        rollout.id: Listed(rollout, columns_of(run, rollout), tuple(flags), verdict, scores or {}, answers or {})
        for rollout, flags, verdict, scores, answers in session.execute(statement)
    }
    return [found[id] for id in ids if id in found]


def _said_of() -> Iterator[ColumnElement[Any]]:
    """Of each rollout: its detectors, its newest verdict, its judges' scores, the answers to questions."""
    yield func.array(
        select(Flag.detector).where(Flag.rollout_id == Rollout.id).order_by(Flag.detector).distinct().scalar_subquery()
    )
    verdict = select(VerdictRecord.verdict).where(VerdictRecord.rollout_id == Rollout.id)
    verdict = verdict.where(VerdictRecord.taken_back_at.is_(None))
    yield verdict.order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc()).limit(1).scalar_subquery()
    for value, kind in ((Grade.score, GraderKind.JUDGE), (Grade.answer, GraderKind.QUESTION)):
        grades = select(func.jsonb_object_agg(Grader.name, value)).select_from(Grade)
        own = (Grade.rollout_id == Rollout.id, Grader.kind == kind)
        yield grades.join(Grader, Grader.id == Grade.grader_id).where(*own).scalar_subquery()


def count(session: Session, run: Run, expression: str = "", scope: FilterScope | None = None) -> int:
    """How many rollouts of the run pass the filter."""
    asked = condition(scope or scope_of(session, run), expression) if expression.strip() else []
    return session.scalar(select(func.count()).select_from(Rollout).where(Rollout.run_id == run.id, *asked)) or 0


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
            joinedload(Rollout.group)
            .joinedload(Group.task)
            .joinedload(Task.version)
            .joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.policy),
        )
        .where(Rollout.id == rollout_id)
    )
    rollout = session.scalars(statement).one_or_none()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout


def weights_of(rollout: Rollout) -> dict[str, float]:
    """The weights of the columns that make its reward, by name: in a mix those of its own environment."""
    run, version = rollout.run, rollout.group.task.version
    if version.id == run.version_id:
        unknown = [1.0] * (len(run.columns) - len(run.weights))
        return dict(zip(run.columns, [*run.weights, *unknown], strict=True))
    return {column.name: column.weight for column in Manifest.model_validate(version.manifest).columns}


def siblings(session: Session, rollout: Rollout) -> Sequence[Rollout]:
    """All members of its group, itself too, in order."""
    statement = select(Rollout).where(Rollout.group_id == rollout.group_id).order_by(Rollout.member)
    return session.scalars(statement).all()


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rollouts before and after one, in a filter and an order."""

    previous: uuid.UUID | None
    next: uuid.UUID | None


def neighbours(session: Session, rollout: Rollout, wanted: RolloutFilter, scope: FilterScope) -> Neighbours:
    """Also of a rollout that does not pass the filter itself: those where it would stand."""
    tree, order = condition_tree(scope, wanted.expression), order_of(scope, wanted.sort)
    if standing := standing_of(session, scope, tree, wanted.expression, wanted.sort):
        return _ids_of(session, scope, standing.neighbours(order, wanted.sort, rollout.seq))
    place = order.joined(select(order.key, Rollout.seq)).where(Rollout.id == rollout.id)
    here = session.execute(place).one()
    asked = (Rollout.run_id == rollout.run_id, *condition(scope, wanted.expression))

    def nearest(*, backwards: bool) -> uuid.UUID | None:
        statement = order.joined(select(Rollout.id)).where(*asked, order.past(here, backwards=backwards))
        ends = order.by(order.key, Rollout.seq.expression, backwards=backwards)
        found: uuid.UUID | None = session.scalar(statement.order_by(*ends).limit(1))
        return found

    return Neighbours(nearest(backwards=True), nearest(backwards=False))


def _ids_of(session: Session, scope: FilterScope, numbers: tuple[int | None, int | None]) -> Neighbours:
    wanted = [number for number in numbers if number is not None]
    found = select(Rollout.seq, Rollout.id).where(Rollout.run_id == scope.run.id, Rollout.seq.in_(wanted))
    ids = {row.seq: row.id for row in session.execute(found)}
    return Neighbours(*(None if number is None else ids.get(number) for number in numbers))


def flags_of_rollout(session: Session, rollout_id: uuid.UUID) -> Sequence[Flag]:
    return session.scalars(select(Flag).where(Flag.rollout_id == rollout_id).order_by(Flag.score.desc())).all()


def verdicts_of_rollout(session: Session, rollout_id: uuid.UUID) -> Sequence[VerdictRecord]:
    """Newest first, with those that were taken back."""
    statement = (
        select(VerdictRecord)
        .options(joinedload(VerdictRecord.person))
        .where(VerdictRecord.rollout_id == rollout_id)
        .order_by(VerdictRecord.id.desc())
    )
    return session.scalars(statement).all()
