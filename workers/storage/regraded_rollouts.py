"""Store copies of rollouts with another outcome in another run. Values that do not change never leave Postgres.

Ids follow from the run and the source rollout's place, so that a repeated write finds its first one.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import orjson
from sqlalchemy import TextClause, delete, select, text, update
from sqlalchemy.orm import Session

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.ids import stable_id
from backend.domain.rollouts.divergence import RecordedEpisode, differences, first_unseen, prompts_of
from backend.domain.rollouts.regrading import DIVERGED_AT, REPLIES_ENDED, REPLIES_LEFT
from backend.domain.rollouts.rollout import Rollout as PlayedRollout
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from workers.rollouts.regrading import ReplayedEpisode
from workers.storage.rollouts import EXCERPT_CHARACTERS, MAX_MESSAGE_CHARACTERS, postgres_array, real

NO_REPLIES = "This rollout has no stored replies, so it cannot be replayed."
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


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """A stored group, and the id of its copy."""

    id: uuid.UUID
    copy_id: uuid.UUID
    task_id: uuid.UUID
    task: TaskSpec


@dataclass(frozen=True, slots=True)
class SourceRollout:
    """A stored rollout, and the id of its copy."""

    id: uuid.UUID
    group: SourceGroup
    member: int
    copy_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class NewEpisode:
    """The parts of an episode that changed. None: as in the source."""

    steps: Sequence[Json]
    messages: Sequence[Json] | None = None
    opening: Json | None = None
    tokens_out: int | None = None
    environment_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RegradedRollout:
    """A copy of a source rollout with its new outcome."""

    source: SourceRollout
    status: RolloutStatus
    reward: float | None = None
    columns: Sequence[float] | None = None
    """In the order of the new run's columns."""
    stop_reason: StopReason | None = None
    error_kind: ErrorKind | None = None
    error_message: str | None = None
    metrics: Mapping[str, float] | None = None
    """None: as in the source."""
    episode: NewEpisode | None = None


@dataclass(frozen=True, slots=True)
class RegradingRule:
    """How a replayed episode becomes a row."""

    columns: Sequence[str]
    """Reward columns of the target version."""
    version: str
    """Name of the target version, for messages."""
    noise: float = 0.0
    accepts_divergence: bool = False
    """Also grade episodes that the policy would have played differently, because a person gave a reason."""


def needs_conversation(replayed: ReplayedEpisode, noise: float) -> bool:
    """Whether `regrade_episode` needs the stored conversation, to see what the policy read or to cut it."""
    if not replayed.rollout.is_completed:
        return False
    seems_different = first_unseen(replayed.episode.recorded, _as_stored(replayed.rollout), noise) is not None
    return seems_different or replayed.replies_left > 0


def regrade_episode(
    replayed: ReplayedEpisode, source: SourceRollout, messages: Sequence[Json] | None, rule: RegradingRule
) -> RegradedRollout:
    """The stored conversation with the target's rewards; failed where the target would have prompted differently."""
    rollout = replayed.rollout
    if not rollout.is_completed:
        return failed_copy(source, rollout.error_kind, rollout.error_message or "stopped")
    after = _as_stored(rollout)
    stored = replace(replayed.episode.recorded, prompts=prompts_of(messages or ()))
    unseen = first_unseen(stored, after, rule.noise)
    if unseen is None and replayed.replies_ended:
        unseen = len(after.steps)
    if unseen is not None and not rule.accepts_divergence:
        where = f"before reply {unseen + 1}" if unseen else "at the reset"
        error = (
            f"{rule.version} diverges {where}: the policy would have read something else, so its stored replies"
            " cannot be graded. A replay shows the difference."
        )
        return failed_copy(source, ErrorKind.ENVIRONMENT, error)

    # Steps with the target's rewards and the policy's own times; the conversation as far as it was used.
    times = ("policy_seconds", "queue_seconds")
    steps = [
        {**step, **{name: old[name] for name in times if name in old}}
        for step, old in zip(after.steps, stored.steps, strict=False)
    ]
    used: list[Json] | None = None
    if replayed.replies_left > 0:
        used, turns = [], 0
        for message in messages or ():
            used.append(message)
            turns += message.get("role") == "assistant"
            if turns >= len(steps):
                break
    episode = NewEpisode(steps, used, environment_seconds=rollout.environment_seconds)
    return _graded(replayed, source, rule, unseen, episode)


def replay_episode(replayed: ReplayedEpisode, source: SourceRollout, rule: RegradingRule) -> RegradedRollout:
    """The new conversation, with the first step that differs as a metric."""
    rollout = replayed.rollout
    if not rollout.is_completed:
        return failed_copy(source, rollout.error_kind, rollout.error_message or "stopped")
    after = _as_stored(rollout)
    difference = next(differences(replayed.episode.recorded, after, rule.noise), None)
    episode = NewEpisode(after.steps, rollout.messages, after.opening, rollout.tokens_out, rollout.environment_seconds)
    return _graded(replayed, source, rule, difference.step if difference else None, episode)


def failed_copy(source: SourceRollout, kind: ErrorKind | None, message: str) -> RegradedRollout:
    return RegradedRollout(source, RolloutStatus.FAILED, error_kind=kind, error_message=message)


def _graded(
    replayed: ReplayedEpisode, source: SourceRollout, rule: RegradingRule, diverged_at: int | None, episode: NewEpisode
) -> RegradedRollout:
    rollout = replayed.rollout
    metrics = dict(rollout.metrics)
    if replayed.replies_ended:
        metrics[REPLIES_ENDED] = 1
    if replayed.replies_left > 0:
        metrics[REPLIES_LEFT] = replayed.replies_left
    if diverged_at is not None:
        metrics[DIVERGED_AT] = diverged_at
    return RegradedRollout(
        source,
        RolloutStatus.COMPLETED,
        reward=rollout.reward,
        columns=[rollout.columns.get(name, 0.0) for name in rule.columns],
        stop_reason=rollout.stop_reason,
        metrics=metrics,
        episode=episode,
    )


def _as_stored(rollout: PlayedRollout) -> RecordedEpisode:
    """The rollout as it will be read back, so that it can be compared with stored ones."""
    steps = orjson.loads(json_text(rollout.steps))
    return RecordedEpisode(orjson.loads(json_text(rollout.opening)), steps, prompts_of(rollout.messages))


def finished(session: Session, sources: Iterable[SourceRollout]) -> set[uuid.UUID]:
    """Return the ids of source rollouts whose copies are stored and did not fail."""
    by_copy = {source.copy_id: source.id for source in sources}
    stored = select(Rollout.id).where(Rollout.id.in_(by_copy), Rollout.status != RolloutStatus.FAILED)
    return {by_copy[copy] for copy in session.scalars(stored)}


def store_copies(
    run_id: uuid.UUID, version_id: uuid.UUID, copies: Sequence[RegradedRollout], *, is_replay: bool = False
) -> int:
    """Store the copies that are not stored yet. A failed copy is replaced. Returns the number of new rows."""
    by_id = {copy.source.copy_id: copy for copy in copies}

    def insert(session: Session, seq: int, missing: Sequence[uuid.UUID]) -> None:
        rows = [_row(number, by_id[copy]) for number, copy in enumerate(missing, start=seq)]
        arrays = zip(_TYPES, (list(array) for array in zip(*rows, strict=True)), strict=True)
        session.execute(_insert_statement(is_replay), {"run": run_id, **dict(arrays)})

    return store_missing(run_id, version_id, [copy.source for copy in copies], insert)


def store_missing(
    run_id: uuid.UUID,
    version_id: uuid.UUID,
    sources: Sequence[SourceRollout],
    insert: Callable[[Session, int, Sequence[uuid.UUID]], object],
) -> int:
    """Insert the copies that are missing, with their tasks and groups, in one transaction.

    `insert` gets the ids of the copies and the number of the first one. Failed copies are deleted first.
    """
    if not sources:
        return 0
    by_id = {source.copy_id: source for source in sources}
    with transaction() as session:
        # The run's row stays locked until the commit, so numbers become visible in their order.
        seq = session.scalars(select(Run.next_seq).where(Run.id == run_id).with_for_update(key_share=True)).one()
        session.execute(delete(Rollout).where(Rollout.id.in_(by_id), Rollout.status == RolloutStatus.FAILED))
        known = set(session.scalars(select(Rollout.id).where(Rollout.id.in_(by_id))))
        missing = [copy for copy in by_id if copy not in known]
        if missing:
            groups = {by_id[copy].group.id: by_id[copy].group for copy in missing}.values()
            specs = [group.task for group in groups]
            tasks = [stable_id("task", version_id, task.split, task.index, task.seed) for task in specs]
            originals = dict(zip(tasks, (group.task_id for group in groups), strict=True))
            ids = {"ids": list(originals), "originals": list(originals.values())}
            session.execute(_ADD_TASKS, {"version": version_id, **ids})
            ids = {"ids": [group.copy_id for group in groups], "originals": [group.id for group in groups]}
            session.execute(_ADD_GROUPS, {"run": run_id, **ids, "tasks": tasks})
            insert(session, seq, missing)
            session.execute(update(Run).where(Run.id == run_id).values(next_seq=seq + len(missing)))
            announce(session, run_topic(run_id))
    return len(missing)


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


def _row(seq: int, copy: RegradedRollout) -> list[object]:
    """Values in the order of `_TYPES`."""
    is_done, episode = copy.status is RolloutStatus.COMPLETED, copy.episode
    changed: list[object] = [None] * 7
    if episode is not None:
        changed = [
            None if episode.opening is None else json_text(episode.opening),
            json_text(episode.steps),
            None if episode.messages is None else json_text(episode.messages),
            plain_text(str(episode.steps[-1]["reply"])[-EXCERPT_CHARACTERS:]) if episode.steps else "",
            len(episode.steps),
            episode.tokens_out,
            episode.environment_seconds,
        ]
    return [
        copy.source.copy_id,
        copy.source.group.copy_id,
        copy.source.id,
        seq,
        copy.status.value,
        copy.stop_reason and copy.stop_reason.value,
        copy.error_kind and copy.error_kind.value,
        copy.error_message and plain_text(copy.error_message)[:MAX_MESSAGE_CHARACTERS],
        real(copy.reward) if is_done else None,
        postgres_array([real(value) for value in copy.columns or ()]) if is_done else None,
        None if copy.metrics is None else json_text(copy.metrics),
        *changed,
    ]
