"""Reads the stored rollouts that are scored or played again, page by page: memory does not grow with the run."""

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Row, Select, String, Text, cast, func, select, tuple_
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.ids import stable_id
from backend.domain.rollouts.divergence import Recorded
from backend.domain.rollouts.regrading import PROBED, RescorePlan, copy_group_id
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from backend.rollouts.regrading.selection import conditions_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from workers.rollouts.regrading import StoredEpisode
from workers.storage.rescored_rollouts import Original, OriginalGroup, finished

PLAY_PAGE = 512
"""Whole episodes at once; a page of long ones takes some megabytes."""
WEIGH_PAGE = 5000


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
    failed: list[Failed] = field(default_factory=list)


_PLACE: tuple[Any, ...] = (Rollout.id, Rollout.group_id, Rollout.member, Rollout.seq)
_PLAY: tuple[Any, ...] = (
    Rollout.status,
    Rollout.error_kind,
    Rollout.error_message,
    Rollout.turns,
    cast(Rollout.opening, Text).label("opening"),
    cast(Rollout.steps, Text).label("steps"),
    Rollout.columns,
    Rollout.stop_reason,
    Rollout.tokens_out,
    Rollout.is_truncated,
)
_GROUP: tuple[Any, ...] = (
    Group.id,
    Group.ordinal,
    Group.training_step,
    Task.id.label("task_id"),
    Task.split,
    Task.index.label("task_index"),
    Task.level,
    Task.seed,
    Task.arguments,
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
            rows = session.execute(drawn).all()
            originals = self._originals(session, rows)
            return [self._episode(row, originals[row.id].group.task) for row in rows]

    def places(self) -> Iterator[tuple[int, list[Original]]]:
        """How many were read, and those of them that are not stored yet; nothing of what was played."""
        after = 0
        while True:
            with transaction() as session:
                statement = select(*_PLACE).where(*self._conditions(session), Rollout.seq > after)
                rows = session.execute(statement.order_by(Rollout.seq).limit(WEIGH_PAGE)).all()
                if not rows:
                    return
                after = rows[-1].seq
                originals = self._originals(session, rows).values()
                known = finished(session, originals)
            yield len(rows), [original for original in originals if original.id not in known]

    def conversations(self, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[dict[str, Any]]]:
        with transaction() as session:
            statement = select(Rollout.id, cast(Rollout.messages, Text)).where(Rollout.id.in_(ids))
            return {rollout_id: orjson.loads(text) for rollout_id, text in session.execute(statement)}

    def _episodes(self, session: Session, after: tuple[int, int] | None) -> Select[Any]:
        statement = select(*_PLACE, *_PLAY).where(*self._conditions(session))
        if after is not None:
            statement = statement.where(tuple_(Rollout.turns, Rollout.seq) > after)
        return statement.order_by(Rollout.turns, Rollout.seq)

    def _conditions(self, session: Session) -> list[ColumnElement[bool]]:
        return conditions_of(session, session.get_one(Run, self.source_id), self.plan)

    def _originals(self, session: Session, rows: Sequence[Row[Any]]) -> dict[uuid.UUID, Original]:
        groups = self._groups(session, {row.group_id for row in rows})
        return {row.id: _original(row, groups[row.group_id]) for row in rows}

    def _groups(self, session: Session, ids: Iterable[uuid.UUID]) -> dict[uuid.UUID, OriginalGroup]:
        statement = select(*_GROUP).join(Task, Task.id == Group.task_id).where(Group.id.in_(ids))
        return {row.id: self._group(row) for row in session.execute(statement)}

    def _group(self, row: Row[Any]) -> OriginalGroup:
        task = TaskSpec(row.split, row.task_index, row.level, row.seed, row.arguments)
        copy_id = copy_group_id(self.run_id, row.training_step, row.ordinal)
        return OriginalGroup(row.id, copy_id, row.task_id, task)

    def _page(self, session: Session, rows: Sequence[Row[Any]]) -> Page:
        page = Page(read=len(rows))
        originals = self._originals(session, rows)
        known = finished(session, originals.values())
        for row in rows:
            original = originals[row.id]
            if row.id in known:
                continue
            if row.status is not RolloutStatus.COMPLETED:
                page.failed.append(Failed(original, row.error_kind, row.error_message))
                continue
            page.originals[row.id] = original
            page.episodes.append(self._episode(row, original.group.task))
        return page

    def _episode(self, row: Row[Any], task: TaskSpec) -> StoredEpisode:
        return StoredEpisode(
            id=row.id,
            task=task,
            recorded=Recorded(orjson.loads(row.opening), orjson.loads(row.steps)),
            columns=dict(zip(self.columns, row.columns or (), strict=False)),
            stop_reason=row.stop_reason,
            tokens_out=row.tokens_out,
            is_truncated=row.is_truncated,
        )


def _original(row: Row[Any], group: OriginalGroup) -> Original:
    return Original(row.id, group, row.member, stable_id("rollout", group.copy_id, row.member))
