"""Stores stored rollouts once more, with another outcome, in another run: what does not change never leaves Postgres.

Ids follow from the run and the original's place, so that a repeated write meets its first.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import TextClause, delete, select, text, update
from sqlalchemy.orm import Session

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.ids import stable_id
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from workers.storage.rollouts import EXCERPT_CHARACTERS, MAX_MESSAGE_CHARACTERS, real


@dataclass(frozen=True, slots=True)
class OriginalGroup:
    """A stored group, and what it becomes."""

    id: uuid.UUID
    copy_id: uuid.UUID
    task_id: uuid.UUID
    task: TaskSpec


@dataclass(frozen=True, slots=True)
class Original:
    """A stored rollout, and what it becomes."""

    id: uuid.UUID
    group: OriginalGroup
    member: int
    copy_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Play:
    """What was played anew. None: as it was."""

    steps: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]] | None = None
    opening: Mapping[str, Any] | None = None
    tokens_out: int | None = None
    environment_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Copy:
    """One original with its new outcome."""

    original: Original
    status: RolloutStatus
    reward: float | None = None
    columns: Sequence[float] | None = None
    """In the order of the new run's columns."""
    stop_reason: StopReason | None = None
    error_kind: ErrorKind | None = None
    error_message: str | None = None
    metrics: Mapping[str, float] | None = None
    """None: as they were."""
    play: Play | None = None


def finished(session: Session, originals: Iterable[Original]) -> set[uuid.UUID]:
    """Those of these originals whose copies are there and did not fail, by their own ids."""
    by_copy = {original.copy_id: original.id for original in originals}
    there = select(Rollout.id).where(Rollout.id.in_(by_copy), Rollout.status != RolloutStatus.FAILED)
    return {by_copy[copy] for copy in session.scalars(there)}


def store_copies(run_id: uuid.UUID, version_id: uuid.UUID, copies: Sequence[Copy], *, is_replay: bool = False) -> int:
    """Store what is not stored yet, in the place of a failed one where there is one. Returns the new rows."""
    by_id = {copy.original.copy_id: copy for copy in copies}

    def insert(session: Session, seq: int, missing: Sequence[uuid.UUID]) -> None:
        session.execute(_insert(is_replay), _parameters(run_id, seq, [by_id[copy] for copy in missing]))

    return store_missing(run_id, version_id, [copy.original for copy in copies], insert)


Insert = Callable[[Session, int, Sequence[uuid.UUID]], object]
"""Inserts the copies with these ids; the first one gets this number."""


def store_missing(run_id: uuid.UUID, version_id: uuid.UUID, originals: Sequence[Original], insert: Insert) -> int:
    """Have those inserted that are not there, with their tasks and groups, in one transaction."""
    if not originals:
        return 0
    by_id = {original.copy_id: original for original in originals}
    with transaction() as session:
        # The run's row stays locked until the commit, so numbers become visible in their order.
        seq = session.scalars(select(Run.next_seq).where(Run.id == run_id).with_for_update(key_share=True)).one()
        known = set(_settled(session, list(by_id)))
        missing = [copy for copy in by_id if copy not in known]
        if missing:
            _store_places(session, run_id, version_id, {by_id[copy].group.id: by_id[copy].group for copy in missing})
            insert(session, seq, missing)
            session.execute(update(Run).where(Run.id == run_id).values(next_seq=seq + len(missing)))
            announce(session, run_topic(run_id))
    return len(missing)


def _settled(session: Session, ids: list[uuid.UUID]) -> list[uuid.UUID]:
    """Those that are stored; failed ones are taken away first and so give place."""
    session.execute(delete(Rollout).where(Rollout.id.in_(ids), Rollout.status == RolloutStatus.FAILED))
    return list(session.scalars(select(Rollout.id).where(Rollout.id.in_(ids))))


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


def _store_places(
    session: Session, run_id: uuid.UUID, version_id: uuid.UUID, groups: Mapping[uuid.UUID, OriginalGroup]
) -> None:
    """Tasks of the run's version and groups of the run, those that are not there yet."""
    tasks = {group.id: _task_id(version_id, group.task) for group in groups.values()}
    originals = {tasks[group.id]: group.task_id for group in groups.values()}
    session.execute(_ADD_TASKS, {"version": version_id, "ids": list(originals), "originals": list(originals.values())})
    copies = [group.copy_id for group in groups.values()]
    found = {"ids": copies, "originals": list(groups), "tasks": [tasks[group] for group in groups]}
    session.execute(_ADD_GROUPS, {"run": run_id, **found})


def _task_id(version_id: uuid.UUID, task: TaskSpec) -> uuid.UUID:
    return stable_id("task", version_id, task.split, task.index, task.seed)


_TYPES = {
    "id": "uuid",
    "group_id": "uuid",
    "source_id": "uuid",
    "seq": "bigint",
    "status": "text",
    "stop_reason": "text",
    "error_kind": "text",
    "error_message": "text",
    "reward": "real",
    "columns": "text",
    "metrics": "text",
    "opening": "text",
    "steps": "text",
    "messages": "text",
    "excerpt": "text",
    "turns": "int",
    "tokens_out": "int",
    "environment_seconds": "real",
}
"""What differs from the original: one array of each goes to Postgres."""
_JSON = ("metrics", "opening", "steps", "messages")
_UNLESS_PLAYED = ("excerpt", "turns", "tokens_out", "environment_seconds")
_NOT_COPIED = {"run_id": ":run", "phase": "'evaluation'", "advantage": "NULL", "is_demonstration": "false"}
_NOT_SAMPLED = {"tokens": "NULL", "cost": "NULL", "policy_seconds": "0", "queue_seconds": "0", "tokens_in": "0"}
"""Of a replay, which asks no policy."""


@lru_cache(maxsize=2)
def _insert(is_replay: bool) -> TextClause:
    """Every column of a rollout: from the original, unless said otherwise."""
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


def _parameters(run_id: uuid.UUID, seq: int, copies: Sequence[Copy]) -> dict[str, Any]:
    values = [_row(number, copy) for number, copy in enumerate(copies, start=seq)]
    arrays = zip(*values, strict=True)
    return {"run": run_id, **{name: list(array) for name, array in zip(_TYPES, arrays, strict=True)}}


def _row(seq: int, copy: Copy) -> list[Any]:
    """In the order of _TYPES."""
    done = copy.status is RolloutStatus.COMPLETED
    columns = [real(value) for value in copy.columns or ()]
    return [
        copy.original.copy_id,
        copy.original.group.copy_id,
        copy.original.id,
        seq,
        copy.status.value,
        copy.stop_reason and copy.stop_reason.value,
        copy.error_kind and copy.error_kind.value,
        copy.error_message and plain_text(copy.error_message)[:MAX_MESSAGE_CHARACTERS],
        real(copy.reward) if done else None,
        _array(columns) if done else None,
        None if copy.metrics is None else json_text(copy.metrics),
        *_played(copy.play),
    ]


def _array(values: Sequence[float | None]) -> str:
    return "{" + ",".join("NULL" if value is None else repr(value) for value in values) + "}"


def _played(play: Play | None) -> list[Any]:
    if play is None:
        return [None] * 7
    return [
        None if play.opening is None else json_text(play.opening),
        json_text(play.steps),
        None if play.messages is None else json_text(play.messages),
        plain_text(str(play.steps[-1]["reply"])[-EXCERPT_CHARACTERS:]) if play.steps else "",
        len(play.steps),
        play.tokens_out,
        play.environment_seconds,
    ]
