"""Read rollouts: lists of a run with counts and neighbors, ids that pass a filter, one rollout whole, its group."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.detectors.tables import Flag
from backend.domain.environments.manifest import Manifest
from backend.domain.graders.settings import GraderKind
from backend.domain.rollouts.fields import FIELDS, Family, Field, column_field_name
from backend.domain.vocabulary import RunKind, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.graders.tables import Grade, Grader
from backend.operations.ids import parse_id
from backend.review.tables import VerdictRecord
from backend.rollouts.filters import LAST_PAGE, Selection, select_rollouts
from backend.rollouts.finished_run_index import LruCache, index_of
from backend.rollouts.scope import FilterScope, scope_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from backend.web.paging import Slice, make_cursor

MAX_COUNTED_BY_TEXT = 5000
"""Counting stops here when it has to read conversations."""
MAX_CACHED_COUNTS = 1000


@dataclass(frozen=True, slots=True)
class ListedRollout:
    rollout: Rollout
    columns: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Detectors that flagged it."""
    verdict: Verdict | None = None
    """The latest."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """By judge."""
    answers: dict[str, str | None] = field(default_factory=dict)
    """By question."""

    def value(self, field: Field) -> object:
        """The value of a field, as plain data."""
        rollout, task = self.rollout, self.rollout.group.task
        match field.name if field.family is Family.ROLLOUT else field.family:
            case Family.COLUMN:
                return self.columns.get(field.key)
            case Family.METRIC:
                return rollout.metrics.get(field.key)
            case Family.JUDGE:
                return self.scores.get(field.key)
            case Family.QUESTION:
                return self.answers.get(field.key)
            case "task":
                return f"{task.split}/{task.index}"
            case "split":
                return str(task.split)
            case "flag":
                return list(self.flags)
            case "verdict":
                return self.verdict
            case "status":
                return str(rollout.stop_reason or rollout.status)
            case _ if len(field.stored) > 1:
                return sum(getattr(rollout, name) for name in field.stored)
            case _:
                value: object = getattr(rollout, field.stored[0])
                return value


@dataclass(frozen=True, slots=True)
class MatchCount:
    count: int
    is_more: bool = False
    """Counting stopped there; there are more."""


@dataclass(frozen=True, slots=True)
class RolloutList(Slice[ListedRollout]):
    matching: MatchCount | None = None
    """None without a filter, or where it was not requested."""


_ANNOTATIONS = (
    func.array(
        select(Flag.detector).where(Flag.rollout_id == Rollout.id).order_by(Flag.detector).distinct().scalar_subquery()
    ).label("flags"),
    select(VerdictRecord.verdict)
    .where(VerdictRecord.rollout_id == Rollout.id, VerdictRecord.taken_back_at.is_(None))
    .order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
    .limit(1)
    .scalar_subquery()
    .label("verdict"),
    *(
        select(func.jsonb_object_agg(Grader.name, value))
        .select_from(Grade)
        .join(Grader, Grader.id == Grade.grader_id)
        .where(Grade.rollout_id == Rollout.id, Grader.kind == kind)
        .scalar_subquery()
        .label(label)
        for label, value, kind in (
            ("scores", Grade.score, GraderKind.JUDGE),
            ("answers", Grade.answer, GraderKind.QUESTION),
        )
    ),
)


def shown_columns(scope: FilterScope, chosen: str | None) -> list[Field]:
    """The chosen columns that exist, from names separated by commas. Default: the most useful ones."""
    by_name = {field.name: field for field in scope.columns}
    is_training = scope.run.kind is RunKind.TRAINING
    default = [
        *("task", "level", *(("phase", "step") if is_training else ()), "reward"),
        *map(column_field_name, scope.run.columns),
        *(("advantage",) if is_training else ()),
        *("turns", "tokens", "status", "excerpt"),
    ]
    shown = [by_name[name] for name in (chosen or "").split(",") if name in by_name]
    return shown or [by_name[name] for name in default]


def list_rollouts(
    session: Session, run: Run, request: RolloutFilter, scope: FilterScope | None = None, *, counts: bool = False
) -> RolloutList:
    """One page of a run's rollouts; rollouts without a value of the order's field come last.

    `counts`: also how many pass the filter. Raises WrongFilter, or InvalidInput for an unknown order or cursor.
    """
    backwards = request.before is not None
    selection = select_rollouts(
        scope or scope_of(session, run),
        request.expression,
        request.sort,
        cursor=request.before if backwards else request.after,
        backwards=backwards,
    )
    counts = counts and selection.tree is not None
    matching: MatchCount | None = None
    found: Sequence[Row[Any]]

    # A finished run: cut the page out of its index.
    index = index_of(session, selection)
    numbers = index.page(request.limit + 1) if index else None
    if index and numbers is not None:
        by_seq = {row.seq: row for row in session.execute(selection.rows.where(Rollout.seq.in_(numbers)))}
        found = [by_seq[number] for number in numbers if number in by_seq]
        matching = MatchCount(int(index.passing().sum())) if counts else None
    # Any other run: search for the page. A filter that has to read the whole run also counts it, in the same statement.
    else:
        reads_text = FIELDS["text"] in selection.fields
        key = _count_key(session, selection) if counts else None
        counts_here = counts and selection.is_expensive and not reads_text and key not in _counts.values
        statement = selection.rows.where(*selection.conditions)
        if counts_here:
            passing = statement.cte("passing")
            whole = select(func.count()).select_from(passing).scalar_subquery()
            statement = select(passing, whole.label("matching")).where(selection.past(passing))
            statement = statement.order_by(*selection.by(passing))
        else:
            statement = statement.where(selection.past()).order_by(*selection.by())
        found = session.execute(statement.limit(request.limit + 1)).all()

        def count() -> MatchCount:
            if counts_here and found:
                return MatchCount(found[0].matching)
            most = MAX_COUNTED_BY_TEXT if reads_text else None
            amount = count_rollouts(session, selection, most and most + 1)
            return MatchCount(min(amount, most or amount), is_more=amount > (most or amount))

        matching = _counts.get(key, count) if counts else None

    # Read the rollouts with their annotations, and make cursors for the directions in which there is more.
    shown = found[: request.limit][:: -1 if backwards else 1]
    statement = select(Rollout, *_ANNOTATIONS).join(Rollout.group).join(Group.task)
    statement = statement.options(contains_eager(Rollout.group).contains_eager(Group.task))
    by_id = {
        rollout.id: ListedRollout(rollout, columns_of(run, rollout), tuple(flags), verdict, scores or {}, answers or {})
        for rollout, flags, verdict, scores, answers in session.execute(
            statement.where(Rollout.id.in_([row.id for row in shown]))
        )
    }
    items = [by_id[row.id] for row in shown if row.id in by_id]
    has_more = len(found) > request.limit
    first, last = (make_cursor(row.key, row.seq) for row in (shown[0], shown[-1])) if shown else (None, None)
    if backwards:
        is_last = request.before == LAST_PAGE
        return RolloutList(items, None if is_last else last, first if has_more else None, matching)
    return RolloutList(items, last if has_more else None, first if request.after else None, matching)


def columns_of(run: Run, rollout: Rollout) -> dict[str, float]:
    """Reward columns by name; none for a failed rollout."""
    return dict(zip(run.columns, rollout.columns or (), strict=False))


def count_rollouts(session: Session, selection: Selection, most: int | None = None) -> int:
    """Number of rollouts that pass the filter. Counting stops at `most`."""
    own = select(Rollout.id).where(Rollout.run_id == selection.scope.run.id, *selection.conditions)
    return session.scalar(select(func.count()).select_from(own.limit(most).subquery())) or 0


def total_of(session: Session, scope: FilterScope) -> int:
    selection = select_rollouts(scope, "")
    key = _count_key(session, selection)
    return _counts.get(key, lambda: MatchCount(count_rollouts(session, selection))).count


@dataclass(frozen=True, slots=True)
class Neighbors:
    """The rollouts before and after one, in a filter and an order."""

    previous: uuid.UUID | None = None
    next: uuid.UUID | None = None


def neighbors(session: Session, rollout: Rollout, request: RolloutFilter, scope: FilterScope) -> Neighbors:
    """Also of a rollout that does not pass the filter itself: the rollouts around its place in the order."""
    selection = select_rollouts(scope, request.expression, request.sort)
    if index := index_of(session, selection):
        numbers = index.neighbors(rollout.seq)
        own = (Rollout.run_id == scope.run.id, Rollout.seq.in_([number for number in numbers if number is not None]))
        ids = {row.seq: row.id for row in session.execute(select(Rollout.seq, Rollout.id).where(*own))}
        return Neighbors(*(None if number is None else ids.get(number) for number in numbers))
    here = session.execute(selection.rows.where(Rollout.id == rollout.id)).one()
    nearest: list[uuid.UUID | None] = []
    for backwards in (True, False):
        side = replace(selection, backwards=backwards, start=(here.key, here.seq))
        rows = side.rows.where(*side.conditions, side.past()).order_by(*side.by())
        row = session.execute(rows.limit(1)).one_or_none()
        nearest.append(row.id if row else None)
    return Neighbors(*nearest)


# Counting reads the whole run, and pages and orders of one list need the same count: it is cached until it can change.
_counts = LruCache[MatchCount](MAX_CACHED_COUNTS, size_of=lambda _: 1)


def _count_key(session: Session, selection: Selection) -> tuple[uuid.UUID, int, str] | None:
    """None where the count may change while no rollout is added."""
    run = selection.scope.run
    changes_later = any(field.changes_later for field in selection.fields)
    if run.kind is RunKind.PLAY or changes_later:  # rollouts of hand play change while they are played
        return None
    last = session.scalar(select(func.max(Rollout.seq)).where(Rollout.run_id == run.id))
    return run.id, last or 0, selection.expression


def matching(session: Session, run: Run, expression: str, *, for_learning: bool = False) -> Select[uuid.UUID]:
    """Select the ids of the run's rollouts that pass a filter (`has flag and win = 0`), for use in other statements."""
    own = select(Rollout.id).where(Rollout.run_id == run.id)
    if not expression.strip():
        return own
    return own.where(*select_rollouts(scope_of(session, run, for_learning=for_learning), expression).conditions)


def newest(session: Session, run: Run, limit: int = 6) -> list[ListedRollout]:
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
    return [ListedRollout(rollout, columns_of(run, rollout)) for rollout in session.scalars(statement)]


def get_rollout(session: Session, rollout_id: uuid.UUID | str, *, is_whole: bool = True) -> Rollout:
    """Read one rollout with its task, run, version, environment and policy. Raises NotFound.

    Without `is_whole`, its steps, messages and tokens are read when they are used: they can have many megabytes.
    """
    statement = (
        select(Rollout)
        .options(
            *map(undefer, (Rollout.steps, Rollout.messages, Rollout.tokens) if is_whole else ()),
            undefer(Rollout.opening),
            undefer(Rollout.seats),
            joinedload(Rollout.group)
            .joinedload(Group.task)
            .joinedload(Task.version)
            .joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.version).joinedload(EnvironmentVersion.environment),
            joinedload(Rollout.run).joinedload(Run.policy),
        )
        .where(Rollout.id == parse_id(str(rollout_id)))
    )
    rollout = session.scalars(statement).one_or_none()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    return rollout


def weights_of(rollout: Rollout) -> dict[str, float]:
    """Weights of its reward by column. In a run on several environments, those of its own environment."""
    run, version = rollout.run, rollout.group.task.version
    if version.id == run.version_id:
        unknown = [1.0] * (len(run.columns) - len(run.weights))
        return dict(zip(run.columns, [*run.weights, *unknown], strict=True))
    return {column.name: column.weight for column in Manifest.model_validate(version.manifest).columns}


def siblings(session: Session, rollout: Rollout) -> Sequence[Rollout]:
    """All members of its group, including itself, in order."""
    statement = select(Rollout).where(Rollout.group_id == rollout.group_id).order_by(Rollout.member)
    return session.scalars(statement).all()
