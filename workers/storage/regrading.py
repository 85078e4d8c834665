"""Read what a regrading or replay run needs, page by page, and store copies of its rollouts with another outcome.

Memory does not grow with the size of the source run, and values that do not change never leave Postgres. Ids follow
from the run and the source rollout's place, so that a repeated write finds its first one.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import Row, Select, String, Text, TextClause, cast, delete, func, select, text, tuple_, update
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import stable_id
from backend.domain.rollouts.divergence import RecordedEpisode, differences, first_unseen, prompts_of
from backend.domain.rollouts.regrading import (
    DIVERGED_AT,
    PROBED,
    REPLIES_ENDED,
    REPLIES_LEFT,
    RegradingPlan,
    copy_group_id,
)
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import CheckStatus, ErrorKind, RolloutStatus, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.rollouts.regrading.service import check_statuses, conditions_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.service import begin_run
from backend.runs.tables import Run
from workers.rollouts.engine import ReplayedEpisode, StoredEpisode
from workers.storage.rollouts import EXCERPT_CHARACTERS, MAX_MESSAGE_CHARACTERS, postgres_array, read_seats, real

PLAY_PAGE = 512
"""Whole episodes that are read at a time; a page of long ones takes some megabytes."""
REWEIGHT_PAGE = 5000
_PLACE: tuple[Any, ...] = (Rollout.id, Rollout.group_id, Rollout.member, Rollout.seq)
_EPISODE: tuple[Any, ...] = (
    *(Rollout.status, Rollout.error_kind, Rollout.error_message, Rollout.turns, Rollout.columns),
    *(cast(Rollout.opening, Text).label("opening"), cast(Rollout.steps, Text).label("steps")),
    *(Rollout.stop_reason, Rollout.tokens_out, Rollout.is_truncated, Rollout.seats),
)
_ADD_TASKS = text("""
INSERT INTO tasks (id, version_id, split, index, level, seed, arguments)
SELECT n.id, :version, t.split, t.index, t.level, t.seed, t.arguments
FROM unnest(CAST(:ids AS uuid[]), CAST(:originals AS uuid[])) AS n(id, original) JOIN tasks t ON t.id = n.original
ORDER BY n.id
ON CONFLICT DO NOTHING
""")
_ADD_GROUPS = text("""
INSERT INTO groups (id, run_id, task_id, phase, training_step, ordinal)
SELECT n.id, :run, n.task_id, 'evaluation', g.training_step, g.ordinal
FROM unnest(CAST(:ids AS uuid[]), CAST(:originals AS uuid[]), CAST(:tasks AS uuid[])) AS n(id, original, task_id)
JOIN groups g ON g.id = n.original
ON CONFLICT DO NOTHING
""")
Json = Mapping[str, object]


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
class SourceRollout:
    """A stored rollout with its group and task, and the ids of the copies of both."""

    id: uuid.UUID
    copy_id: uuid.UUID
    group_id: uuid.UUID
    group_copy_id: uuid.UUID
    task_id: uuid.UUID
    task: TaskSpec


@dataclass(frozen=True, slots=True)
class RegradedRollout:
    """A copy of a source rollout with its new outcome."""

    source: SourceRollout
    values: Mapping[str, object]
    """By column of `_TYPES`, as Postgres reads them."""


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
class RegradingWork:
    """The chosen rollouts of a run, for another run that regrades them."""

    run_id: uuid.UUID
    """The run that regrades."""
    kind: RunKind
    plan: RegradingPlan
    weights: dict[str, float]
    """By column of this run."""
    own: PlayableVersion
    """The version that the rollouts were played on."""
    target: PlayableVersion
    source_id: uuid.UUID
    source_columns: tuple[str, ...]
    is_certified: bool
    """The certificates of both versions say that stored episodes earn the same again."""
    noise: float
    """Numbers in observations may differ by this much."""

    def count(self) -> int:
        with transaction() as session:
            return session.scalar(self._select(session, func.count(Rollout.id))) or 0

    def pages(self) -> Iterator[SourcePage]:
        """Yield short episodes first, so that neighbors have the same number of turns."""
        after: tuple[int, int] | None = None
        while True:
            with transaction() as session:
                statement = self._select(session, *_PLACE, *_EPISODE).order_by(Rollout.turns, Rollout.seq)
                if after is not None:
                    statement = statement.where(tuple_(Rollout.turns, Rollout.seq) > after)
                rows = session.execute(statement.limit(PLAY_PAGE)).all()
                if not rows:
                    return
                after = rows[-1].turns, rows[-1].seq
                page = SourcePage(read=len(rows))
                rollouts = self._source_rollouts(session, rows)
                known = _finished(session, rollouts.values())
            for row in rows:
                source = rollouts[row.id]
                if row.id in known:
                    continue
                if row.status is not RolloutStatus.COMPLETED:
                    message = f"The source rollout failed: {row.error_message or 'no message'}"
                    page.failed.append(failed_copy(source, row.error_kind, message))
                    continue
                page.rollouts[row.id] = source
                page.episodes.append(read_episode(row, source.task, self.source_columns))
            yield page

    def sample(self) -> list[StoredEpisode]:
        """A sample of completed episodes, the same each time."""
        with transaction() as session:
            is_played = (Rollout.status == RolloutStatus.COMPLETED, Rollout.turns > 0)
            by_hash = func.md5(cast(Rollout.id, String))
            statement = self._select(session, *_PLACE, *_EPISODE).where(*is_played).order_by(by_hash)
            rows = session.execute(statement.limit(PROBED)).all()
            sources = self._source_rollouts(session, rows)
            return [read_episode(row, sources[row.id].task, self.source_columns) for row in rows]

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
                known = _finished(session, rollouts)
            yield len(rows), [rollout for rollout in rollouts if rollout.id not in known]

    def _select(self, session: Session, *columns: Any) -> Select[Any]:
        return select(*columns).where(*conditions_of(session, session.get_one(Run, self.source_id), self.plan))

    def _source_rollouts(self, session: Session, rows: Sequence[Row[Any]]) -> dict[uuid.UUID, SourceRollout]:
        statement = (
            select(Group.id, Group.ordinal, Group.training_step, Task.id.label("task_id"))
            .add_columns(Task.split, Task.index, Task.level, Task.seed, Task.arguments)
            .join(Task, Task.id == Group.task_id)
            .where(Group.id.in_({row.group_id for row in rows}))
        )
        groups = {}
        for group_id, ordinal, training_step, task_id, *task in session.execute(statement):
            copy_id = copy_group_id(self.run_id, training_step, ordinal)
            groups[group_id] = group_id, copy_id, task_id, TaskSpec(*task)
        copies = [(groups[row.group_id], stable_id("rollout", groups[row.group_id][1], row.member)) for row in rows]
        return {row.id: SourceRollout(row.id, copy, *group) for row, (group, copy) in zip(rows, copies, strict=True)}


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
        target = read_version(session, run.version_id)
        own = target if source.version_id == run.version_id else read_version(session, source.version_id)
        statuses = check_statuses(session, {own.version_id, target.version_id})
        return RegradingWork(
            run_id=run_id,
            kind=run.kind,
            plan=RegradingPlan.model_validate(run.configuration),
            weights=dict(zip(run.columns, run.weights, strict=True)),
            own=own,
            target=target,
            source_id=source.id,
            source_columns=tuple(source.columns),
            is_certified=all(status is CheckStatus.PASSED for status in statuses.values()),
            noise=max(version.manifest.proctor.checks.noise for version in (own, target)),
        )


def read_episode(row: Row[Any], task: TaskSpec, columns: Sequence[str] = ()) -> StoredEpisode:
    """Return the episode of a row with `opening` and `steps` as text."""
    return StoredEpisode(
        id=row.id,
        task=task,
        recorded=RecordedEpisode(orjson.loads(row.opening), orjson.loads(row.steps)),
        columns=dict(zip(columns, row.columns or (), strict=False)) if columns else {},
        stop_reason=row.stop_reason,
        tokens_out=row.tokens_out,
        is_truncated=row.is_truncated,
        seats=read_seats(row.seats),
    )


def regrade_episodes(
    work: RegradingWork, replayed: Sequence[ReplayedEpisode], sources: Mapping[uuid.UUID, SourceRollout]
) -> list[RegradedRollout]:
    """Return the copies of the replayed episodes. The stored conversations are read where they are needed."""
    outcomes = []  # as they will be read back, so that they can be compared with stored ones
    for each in replayed:
        opening, steps = orjson.loads(json_text(each.rollout.opening)), orjson.loads(json_text(each.rollout.steps))
        outcomes.append(RecordedEpisode(opening, steps, prompts_of(each.rollout.messages)))
    needed = []
    if work.kind is RunKind.RESCORE:
        for each, after in zip(replayed, outcomes, strict=True):
            # to see what the policy read, if something differs, or to cut the conversation
            differs = each.replies_left > 0 or first_unseen(each.episode.recorded, after, work.noise) is not None
            if each.rollout.is_completed and differs:
                needed.append(each.episode.id)
    conversations: dict[uuid.UUID, list[Json]] = {}
    if needed:
        with transaction() as session:
            found = session.execute(select(Rollout.id, cast(Rollout.messages, Text)).where(Rollout.id.in_(needed)))
            conversations = {rollout_id: orjson.loads(messages) for rollout_id, messages in found}
    return [
        _regraded(work, each, sources[each.episode.id], after, conversations.get(each.episode.id, ()))
        for each, after in zip(replayed, outcomes, strict=True)
    ]


def _regraded(
    work: RegradingWork,
    replayed: ReplayedEpisode,
    source: SourceRollout,
    after: RecordedEpisode,
    messages: Sequence[Json],
) -> RegradedRollout:
    """A replay has the new conversation, and the first step that differs as a metric.

    Regrading keeps the stored conversation, and fails where the target would have prompted differently.
    """
    rollout, stored = replayed.rollout, replayed.episode.recorded
    if not rollout.is_completed:
        return failed_copy(source, rollout.error_kind, rollout.error_message or "stopped")
    changed: dict[str, object] = {}
    if work.kind is RunKind.REPLAY:
        difference = next(differences(stored, after, work.noise), None)
        diverged_at, steps = difference.step if difference else None, after.steps
        changed = {"opening": json_text(after.opening), "messages": json_text(rollout.messages)}
        changed["tokens_out"] = rollout.tokens_out
    else:
        diverged_at = first_unseen(replace(stored, prompts=prompts_of(messages)), after, work.noise)
        if diverged_at is None and replayed.replies_ended:
            diverged_at = len(after.steps)
        if diverged_at is not None and not work.plan.override:  # a person gave a reason to grade them nevertheless
            where = f"before reply {diverged_at + 1}" if diverged_at else "at the reset"
            error = (
                f"{work.target.name} diverges {where}: the policy would have read something else, so its stored replies"
                " cannot be graded. A replay shows the difference."
            )
            return failed_copy(source, ErrorKind.ENVIRONMENT, error)
        # Steps with the target's rewards and the policy's own times; the conversation as far as it was used.
        times = ("policy_seconds", "queue_seconds")
        steps = [
            {**step, **{name: old[name] for name in times if name in old}}
            for step, old in zip(after.steps, stored.steps, strict=False)
        ]
        if replayed.replies_left > 0:
            replies = [number for number, each in enumerate(messages, start=1) if each.get("role") == "assistant"]
            end = replies[len(steps) - 1] if len(steps) <= len(replies) else None
            changed = {"messages": json_text(messages[:end])}
    signs = {REPLIES_ENDED: int(replayed.replies_ended), REPLIES_LEFT: max(replayed.replies_left, 0)}
    metrics = {**rollout.metrics, **{name: value for name, value in signs.items() if value}}
    if diverged_at is not None:
        metrics[DIVERGED_AT] = diverged_at
    values = {
        "status": RolloutStatus.COMPLETED.value,
        "stop_reason": rollout.stop_reason and rollout.stop_reason.value,
        "reward": real(rollout.reward),
        "columns": postgres_array([real(rollout.columns.get(name, 0.0)) for name in work.target.manifest.column_names]),
        "metrics": json_text(metrics),
        "steps": json_text(steps),
        "excerpt": plain_text(str(steps[-1]["reply"])[-EXCERPT_CHARACTERS:]) if steps else "",
        "turns": len(steps),
        "environment_seconds": rollout.environment_seconds,
    }
    return RegradedRollout(source, values | changed)


def failed_copy(source: SourceRollout, kind: ErrorKind | None, message: str) -> RegradedRollout:
    error = {"error_kind": kind and kind.value, "error_message": plain_text(message)[:MAX_MESSAGE_CHARACTERS]}
    return RegradedRollout(source, {"status": RolloutStatus.FAILED.value, **error})


def _finished(session: Session, sources: Iterable[SourceRollout]) -> set[uuid.UUID]:
    """Return the ids of source rollouts whose copies are stored and did not fail."""
    by_copy = {source.copy_id: source.id for source in sources}
    stored = select(Rollout.id).where(Rollout.id.in_(by_copy), Rollout.status != RolloutStatus.FAILED)
    return {by_copy[copy] for copy in session.scalars(stored)}


def store_copies(work: RegradingWork, copies: Sequence[RegradedRollout]) -> None:
    """Store the copies that are not stored yet. A failed copy is replaced."""
    by_id = {copy.source.copy_id: copy.values for copy in copies}

    def insert(session: Session, seq: int, missing: Sequence[SourceRollout]) -> None:
        rows = []
        for number, each in enumerate(missing, start=seq):
            place = {"id": each.copy_id, "group_id": each.group_copy_id, "source_id": each.id, "seq": number}
            rows.append({**by_id[each.copy_id], **place})
        arrays = {name: [row.get(name) for row in rows] for name in _TYPES}
        session.execute(_insert_statement(work.kind is RunKind.REPLAY), {"run": work.run_id, **arrays})

    store_missing(work, [copy.source for copy in copies], insert)


def store_missing(
    work: RegradingWork,
    sources: Sequence[SourceRollout],
    insert: Callable[[Session, int, Sequence[SourceRollout]], object],
) -> None:
    """Insert the copies that are missing, with their tasks and groups, in one transaction.

    `insert` gets the sources of the copies and the number of the first one. Failed copies are deleted first.
    """
    if not sources:
        return
    by_id = {source.copy_id: source for source in sources}
    with transaction() as session:
        # The run's row stays locked until the commit, so numbers become visible in their order.
        seq = session.scalars(select(Run.next_seq).where(Run.id == work.run_id).with_for_update(key_share=True)).one()
        session.execute(delete(Rollout).where(Rollout.id.in_(by_id), Rollout.status == RolloutStatus.FAILED))
        known = set(session.scalars(select(Rollout.id).where(Rollout.id.in_(by_id))))
        missing = [source for copy, source in by_id.items() if copy not in known]
        if not missing:
            return
        groups = {each.group_id: each for each in missing}.values()
        version_id = work.target.version_id
        tasks = [stable_id("task", version_id, each.task.split, each.task.index, each.task.seed) for each in groups]
        originals = dict(zip(tasks, (each.task_id for each in groups), strict=True))
        ids = {"ids": list(originals), "originals": list(originals.values())}
        session.execute(_ADD_TASKS, {"version": version_id, **ids})
        ids = {"ids": [each.group_copy_id for each in groups], "originals": [each.group_id for each in groups]}
        session.execute(_ADD_GROUPS, {"run": work.run_id, **ids, "tasks": tasks})
        insert(session, seq, missing)
        session.execute(update(Run).where(Run.id == work.run_id).values(next_seq=seq + len(missing)))
        announce(session, topic_of("run", work.run_id))


_TYPES = {
    **dict.fromkeys(("id", "group_id", "source_id"), "uuid"),
    **dict.fromkeys(("status", "stop_reason", "error_kind", "error_message", "excerpt"), "text"),
    **dict.fromkeys(("columns", "metrics", "opening", "steps", "messages"), "text"),
    **dict.fromkeys(("reward", "environment_seconds"), "real"),
    **dict.fromkeys(("turns", "tokens_out"), "int"),
    "seq": "bigint",
}
"""Columns that differ from the source: one array of each is sent to Postgres."""
_JSON = ("metrics", "opening", "steps", "messages")
_UNLESS_PLAYED = ("excerpt", "turns", "tokens_out", "environment_seconds")
_NOT_COPIED = {"run_id": ":run", "phase": "'evaluation'", "advantage": "NULL", "is_demonstration": "false"}
_NOT_SAMPLED = {"tokens": "NULL", "cost": "NULL", "policy_seconds": "0", "queue_seconds": "0", "tokens_in": "0"}
"""Columns of a replay, which samples from no policy."""


@lru_cache(maxsize=2)
def _insert_statement(is_replay: bool) -> TextClause:
    """Insert every column of a rollout, from the source unless another value is given."""
    values = {column.name: f"s.{column.name}" for column in Rollout.__table__.columns if column.name != "created_at"}
    values |= {name: f"n.{name}" for name in _TYPES}
    values |= {name: f"coalesce(n.{name}::jsonb, s.{name})" for name in _JSON}
    values |= {name: f"coalesce(n.{name}, s.{name})" for name in _UNLESS_PLAYED}
    values |= _NOT_COPIED | {"columns": "CAST(n.columns AS real[])", "attempts": "1"}
    values |= _NOT_SAMPLED if is_replay else {}
    arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in _TYPES.items())
    return text(
        f"INSERT INTO rollouts ({', '.join(values)}) SELECT {', '.join(values.values())}"
        f" FROM unnest({arrays}) AS n({', '.join(_TYPES)}) JOIN rollouts s ON s.id = n.source_id"
    )
