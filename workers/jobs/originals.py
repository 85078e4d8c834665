"""Reads the stored rollouts that are scored or played again, page by page: memory does not grow with the run."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, String, cast, func, select, tuple_
from sqlalchemy.orm import Session

from backend.db.models import Group, Rollout, Run, Task
from backend.db.session import transaction
from backend.domain.divergence import Recorded, prompts_of
from backend.domain.rescoring import PROBED, RescorePlan
from backend.domain.rollouts import TaskSpec
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from backend.rescoring.columns import Candidate, measured
from backend.rescoring.selection import conditions_of
from workers.jobs.copies import Original, finished
from workers.judging.rescoring import StoredEpisode

PLAY_PAGE = 512
"""Whole episodes at once; a page of long ones takes some megabytes."""
WEIGH_PAGE = 4000


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout that had no reward to begin with."""

    original: Original
    error_kind: ErrorKind | None
    error_message: str | None


@dataclass(slots=True)
class Page:
    """The next originals; what is stored already is left out."""

    read: int = 0
    episodes: list[StoredEpisode] = field(default_factory=list)
    originals: dict[uuid.UUID, Original] = field(default_factory=dict)
    """By id, of the episodes."""
    messages: dict[uuid.UUID, list[dict[str, Any]]] = field(default_factory=dict)
    failed: list[Failed] = field(default_factory=list)


@dataclass(slots=True)
class Weighed:
    """The next originals with the values that carry a weight; None where one is missing."""

    read: int = 0
    rows: list[tuple[Original, list[float | None]]] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


_PLACE = (
    Rollout.id,
    Rollout.group_id,
    Rollout.member,
    Rollout.training_step,
    Rollout.seq,
    Rollout.status,
    Rollout.error_kind,
    Rollout.error_message,
    Rollout.stop_reason,
    Group.ordinal,
    Task.id.label("task_id"),
    Task.split,
    Task.index.label("task_index"),
    Task.level.label("task_level"),
    Task.seed,
    Task.arguments,
)
_PLAY = (
    Rollout.turns,
    Rollout.opening,
    Rollout.steps,
    Rollout.messages,
    Rollout.columns,
    Rollout.tokens_out,
    Rollout.is_truncated,
)


@dataclass(frozen=True, slots=True)
class Originals:
    """The chosen rollouts of a run, for another run that takes them over."""

    run_id: uuid.UUID
    """Which takes over."""
    source_id: uuid.UUID
    plan: RescorePlan
    columns: tuple[str, ...]
    """Of the source."""

    def count(self) -> int:
        with transaction() as session:
            conditions = self._conditions(session)
            return session.scalar(select(func.count()).select_from(Rollout).where(*conditions)) or 0

    def pages(self) -> Iterator[Page]:
        """Short episodes first, so that neighbours have the same number of turns."""
        after: tuple[int, int] | None = None
        while True:
            with transaction() as session:
                rows = session.execute(self._episodes(session, after).limit(PLAY_PAGE)).all()
                if not rows:
                    return
                after = rows[-1].turns, rows[-1].seq
                page = self._page(session, rows)
            yield page

    def sample(self) -> list[StoredEpisode]:
        """Some completed ones from everywhere, the same each time."""
        with transaction() as session:
            statement = self._episodes(session, None).where(
                Rollout.status == RolloutStatus.COMPLETED, Rollout.turns > 0
            )
            drawn = statement.order_by(None).order_by(func.md5(cast(Rollout.id, String))).limit(PROBED)
            return [self._episode(row) for row in session.execute(drawn)]

    def weighed(self, chosen: Sequence[Candidate]) -> Iterator[Weighed]:
        after = 0
        while True:
            with transaction() as session:
                rows = session.execute(self._places(session, after)).all()
                if not rows:
                    return
                values = self._values(session, chosen, after, rows[-1].seq)
                known = finished(session, self.run_id, [_original(row) for row in rows])
            after = rows[-1].seq
            page = Weighed(read=len(rows))
            for row in rows:
                if row.id not in known:
                    self._sort(page, row, values.get(row.id))
            yield page

    def _sort(self, page: Weighed, row: Row[Any], values: list[float | None] | None) -> None:
        if values is None:
            page.failed.append(_failed(row))
        else:
            page.rows.append((_original(row), values))

    def _values(
        self, session: Session, chosen: Sequence[Candidate], after: int, until: int
    ) -> dict[uuid.UUID, list[float | None]]:
        run = session.get_one(Run, self.source_id)
        conditions = [*self._conditions(session), Rollout.seq > after, Rollout.seq <= until]
        return {row[0]: list(row[5:]) for row in session.execute(measured(run, chosen, conditions))}

    def _places(self, session: Session, after: int) -> Select[Any]:
        statement = _in_place(select(*_PLACE)).where(*self._conditions(session), Rollout.seq > after)
        return statement.order_by(Rollout.seq).limit(WEIGH_PAGE)

    def _episodes(self, session: Session, after: tuple[int, int] | None) -> Select[Any]:
        statement = _in_place(select(*_PLACE, *_PLAY)).where(*self._conditions(session))
        if after is not None:
            statement = statement.where(tuple_(Rollout.turns, Rollout.seq) > after)
        return statement.order_by(Rollout.turns, Rollout.seq)

    def _conditions(self, session: Session) -> list[ColumnElement[bool]]:
        return conditions_of(session, session.get_one(Run, self.source_id), self.plan)

    def _page(self, session: Session, rows: Sequence[Row[Any]]) -> Page:
        page = Page(read=len(rows))
        known = finished(session, self.run_id, [_original(row) for row in rows])
        for row in rows:
            if row.id in known:
                continue
            if row.status is not RolloutStatus.COMPLETED:
                page.failed.append(_failed(row))
                continue
            page.originals[row.id] = _original(row)
            page.messages[row.id] = row.messages
            page.episodes.append(self._episode(row))
        return page

    def _episode(self, row: Row[Any]) -> StoredEpisode:
        return StoredEpisode(
            id=row.id,
            task=_task(row),
            recorded=Recorded(row.opening, row.steps, prompts_of(row.messages)),
            columns=dict(zip(self.columns, row.columns or (), strict=False)),
            stop_reason=row.stop_reason,
            tokens_out=row.tokens_out,
            is_truncated=row.is_truncated,
        )


def _in_place(statement: Select[Any]) -> Select[Any]:
    return statement.join(Group, Group.id == Rollout.group_id).join(Task, Task.id == Group.task_id)


def _task(row: Row[Any]) -> TaskSpec:
    return TaskSpec(row.split, row.task_index, row.task_level, row.seed, row.arguments)


def _original(row: Row[Any]) -> Original:
    place = row.ordinal, row.training_step, row.member
    return Original(row.id, row.group_id, row.task_id, _task(row), *place, row.stop_reason)


def _failed(row: Row[Any]) -> Failed:
    return Failed(_original(row), row.error_kind, row.error_message)
