"""Read what a regrading or replay run needs: its plan and versions once, and the source rollouts page by page.

Memory does not grow with the size of the source run.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Row, Select, String, Text, cast, func, select, tuple_
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import stable_id
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.regrading import PROBED, RegradingPlan, copy_group_id
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.vocabulary import CheckStatus, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.rollouts.regrading.service import check_statuses, conditions_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.service import begin_run
from backend.runs.tables import Run
from workers.rollouts.regrading import StoredEpisode
from workers.storage.regraded_rollouts import RegradedRollout, SourceGroup, SourceRollout, failed_copy, finished

PLAY_PAGE = 512
"""Whole episodes that are read at a time; a page of long ones takes some megabytes."""
REWEIGHT_PAGE = 5000
_PLACE: tuple[Any, ...] = (Rollout.id, Rollout.group_id, Rollout.member, Rollout.seq)
_EPISODE: tuple[Any, ...] = (
    *(Rollout.status, Rollout.error_kind, Rollout.error_message, Rollout.turns, Rollout.columns),
    *(cast(Rollout.opening, Text).label("opening"), cast(Rollout.steps, Text).label("steps")),
    *(Rollout.stop_reason, Rollout.tokens_out, Rollout.is_truncated),
)


class SourceIsGone(Conflict):
    """The run whose rollouts were to be regraded was deleted."""


@dataclass(frozen=True, slots=True)
class PlayableVersion:
    version_id: uuid.UUID
    name: str
    """`tictactoe v2`"""
    content_hash: str
    manifest: Manifest = field(repr=False)
    files: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RegradingEnd:
    status: RunStatus
    reason: str | None = None
    grounds: str = ""
    """Why the result can be trusted, as a sentence."""


@dataclass(slots=True)
class SourcePage:
    """The next source rollouts, without those whose copies are stored."""

    read: int = 0
    episodes: list[StoredEpisode] = field(default_factory=list)
    rollouts: dict[uuid.UUID, SourceRollout] = field(default_factory=dict)
    """By id of the episode."""
    failed: list[RegradedRollout] = field(default_factory=list)
    """Copies of rollouts without a reward. They are failed too, so that coverage stays the same."""


@dataclass(frozen=True, slots=True)
class SourceRollouts:
    """The chosen rollouts of a run, for another run that regrades them."""

    run_id: uuid.UUID
    """The run that regrades."""
    source_id: uuid.UUID
    plan: RegradingPlan
    columns: tuple[str, ...]
    """Reward columns of the source."""

    def count(self) -> int:
        with transaction() as session:
            return session.scalar(self._select(session, func.count(Rollout.id))) or 0

    def pages(self) -> Iterator[SourcePage]:
        """Yield short episodes first, so that neighbors have the same number of turns."""
        after: tuple[int, int] | None = None
        while True:
            with transaction() as session:
                statement = (
                    self._select(session, *_PLACE, *_EPISODE).order_by(Rollout.turns, Rollout.seq).limit(PLAY_PAGE)
                )
                if after is not None:
                    statement = statement.where(tuple_(Rollout.turns, Rollout.seq) > after)
                rows = session.execute(statement).all()
                if not rows:
                    return
                after = rows[-1].turns, rows[-1].seq
                page = SourcePage(read=len(rows))
                rollouts = self._source_rollouts(session, rows)
                known = finished(session, rollouts.values())
            for row in rows:
                if row.id in known:
                    continue
                if row.status is not RolloutStatus.COMPLETED:
                    message = f"The source rollout failed: {row.error_message or 'no message'}"
                    page.failed.append(failed_copy(rollouts[row.id], row.error_kind, message))
                    continue
                page.rollouts[row.id] = rollouts[row.id]
                page.episodes.append(self._episode(row, rollouts[row.id].group.task))
            yield page

    def sample(self) -> list[StoredEpisode]:
        """A sample of completed episodes, the same each time."""
        with transaction() as session:
            is_played = (Rollout.status == RolloutStatus.COMPLETED, Rollout.turns > 0)
            by_hash = func.md5(cast(Rollout.id, String))
            statement = self._select(session, *_PLACE, *_EPISODE).where(*is_played).order_by(by_hash)
            rows = session.execute(statement.limit(PROBED)).all()
            rollouts = self._source_rollouts(session, rows)
            return [self._episode(row, rollouts[row.id].group.task) for row in rows]

    def places(self) -> Iterator[tuple[int, list[SourceRollout]]]:
        """Yield the number of rollouts read and those without a stored copy, without their episodes."""
        after = 0
        while True:
            with transaction() as session:
                statement = self._select(session, *_PLACE).where(Rollout.seq > after)
                rows = session.execute(statement.order_by(Rollout.seq).limit(REWEIGHT_PAGE)).all()
                if not rows:
                    return
                after = rows[-1].seq
                rollouts = self._source_rollouts(session, rows).values()
                known = finished(session, rollouts)
            yield len(rows), [rollout for rollout in rollouts if rollout.id not in known]

    def conversations(self, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[dict[str, object]]]:
        with transaction() as session:
            statement = select(Rollout.id, cast(Rollout.messages, Text)).where(Rollout.id.in_(ids))
            return {rollout_id: orjson.loads(text) for rollout_id, text in session.execute(statement)}

    def _select(self, session: Session, *columns: Any) -> Select[Any]:
        return select(*columns).where(*conditions_of(session, session.get_one(Run, self.source_id), self.plan))

    def _source_rollouts(self, session: Session, rows: Iterable[Row[Any]]) -> dict[uuid.UUID, SourceRollout]:
        rows = list(rows)
        own = (Group.id, Group.ordinal, Group.training_step)
        of_task = (Task.id.label("task_id"), Task.split, Task.index.label("task_index"))
        statement = select(*own, *of_task, Task.level, Task.seed, Task.arguments).join(Task, Task.id == Group.task_id)
        groups = {}
        for group in session.execute(statement.where(Group.id.in_({row.group_id for row in rows}))):
            copy_id = copy_group_id(self.run_id, group.training_step, group.ordinal)
            task = TaskSpec(group.split, group.task_index, group.level, group.seed, group.arguments)
            groups[group.id] = SourceGroup(group.id, copy_id, group.task_id, task)
        return {
            row.id: SourceRollout(
                row.id,
                groups[row.group_id],
                row.member,
                stable_id("rollout", groups[row.group_id].copy_id, row.member),
            )
            for row in rows
        }

    def _episode(self, row: Row[Any], task: TaskSpec) -> StoredEpisode:
        return StoredEpisode(
            id=row.id,
            task=task,
            recorded=RecordedEpisode(orjson.loads(row.opening), orjson.loads(row.steps)),
            columns=dict(zip(self.columns, row.columns or (), strict=False)),
            stop_reason=row.stop_reason,
            tokens_out=row.tokens_out,
            is_truncated=row.is_truncated,
        )


@dataclass(frozen=True, slots=True)
class RegradingWork:
    run_id: uuid.UUID
    kind: RunKind
    plan: RegradingPlan
    weights: dict[str, float]
    """By column of this run."""
    own: PlayableVersion
    """The version that the rollouts were played on."""
    target: PlayableVersion
    source: SourceRollouts
    is_certified: bool
    """The certificates of both versions say that stored episodes earn the same again."""


def claim_regrading(run_id: uuid.UUID) -> RegradingWork | None:
    """Begin the run and read its work; None if it is finished."""

    def read_version(session: Session, version_id: uuid.UUID) -> PlayableVersion:
        whole = [undefer(EnvironmentVersion.files), joinedload(EnvironmentVersion.environment)]
        version = session.get_one(EnvironmentVersion, version_id, options=whole)
        name = f"{version.environment.name} v{version.number}"
        manifest = Manifest.model_validate(version.manifest)
        return PlayableVersion(version.id, name, version.content_hash, manifest, version.files)

    with transaction() as session:
        run = session.get_one(Run, run_id)
        if not begin_run(session, run):
            return None
        source = session.get(Run, run.source_run_id) if run.source_run_id else None
        if source is None:
            raise SourceIsGone
        plan = RegradingPlan.model_validate(run.configuration)
        target = read_version(session, run.version_id)
        own = target if source.version_id == run.version_id else read_version(session, source.version_id)
        statuses = check_statuses(session, {own.version_id, target.version_id})
        return RegradingWork(
            run_id=run_id,
            kind=run.kind,
            plan=plan,
            weights=dict(zip(run.columns, run.weights, strict=True)),
            own=own,
            target=target,
            source=SourceRollouts(run_id, source.id, plan, tuple(source.columns)),
            is_certified=all(status is CheckStatus.PASSED for status in statuses.values()),
        )
