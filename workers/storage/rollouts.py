"""A rollout as a row for COPY. What models and environments wrote may hold anything; Postgres text may not."""

import math
import uuid
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from backend.domain.ids import stable_id
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.rollout import Rollout
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from workers.rollouts.limits import MAX_EPISODE_BYTES, MAX_STORED_BYTES, bounded_text

_COUNTS = tuple(name for name, field in MEASURED.items() if field.is_whole)
_DURATIONS = tuple(name for name, field in MEASURED.items() if not field.is_whole)
_counts_of, _durations_of = attrgetter(*_COUNTS), attrgetter(*_DURATIONS)
COLUMNS = (
    *("id", "run_id", "group_id", "member", "seq", "phase", "training_step", "level"),
    *("status", "stop_reason", "error_kind", "error_message", "attempts", "reward", "columns", "metrics"),
    *("opening", "steps", "messages", "excerpt", "turns", "is_truncated", "tokens", "advantage"),
    *("cost", "source_id", "started_at", "ended_at"),
    *_COUNTS,
    *_DURATIONS,
)
GROUP, SEQ = COLUMNS.index("group_id"), COLUMNS.index("seq")
EXCERPT_CHARACTERS = 300
MAX_MESSAGE_CHARACTERS = 20_000
LARGEST_COUNT = 2**31 - 1
_LARGEST_REAL, _SMALLEST_REAL = 3.4e38, 1.2e-38


def group_id(run_id: uuid.UUID, rollout: Rollout) -> uuid.UUID:
    return stable_id("group", run_id, rollout.phase, rollout.training_step, rollout.group)


def rollout_id(run_id: uuid.UUID, rollout: Rollout) -> uuid.UUID:
    return stable_id("rollout", group_id(run_id, rollout), rollout.member)


def unstorable(rollout: Rollout, problem: str) -> Rollout:
    """The failed rollout that is stored in the place of one that the database refuses: its contents are left out."""
    return Rollout(
        task=rollout.task,
        phase=rollout.phase,
        group=rollout.group,
        member=rollout.member,
        status=RolloutStatus.FAILED,
        error_kind=ErrorKind.LIMIT,
        error_message=f"The rollout could not be stored: {problem}",
        training_step=rollout.training_step,
        started_at=rollout.started_at,
        ended_at=rollout.ended_at,
        source_id=rollout.source_id,
    )


def row_of(run_id: uuid.UUID, rollout: Rollout, columns: Sequence[str]) -> list[Any]:
    """Values in the order of COLUMNS; `seq` is filled under the run's lock."""
    group = group_id(run_id, rollout)
    done = rollout.is_completed
    return [
        stable_id("rollout", group, rollout.member),
        run_id,
        group,
        rollout.member,
        None,
        rollout.counted_phase.value,
        rollout.training_step,
        rollout.task.level,
        rollout.status.value,
        rollout.stop_reason and rollout.stop_reason.value,
        rollout.error_kind and rollout.error_kind.value,
        rollout.error_message and plain_text(rollout.error_message)[:MAX_MESSAGE_CHARACTERS],
        rollout.attempts,
        real(rollout.reward) if done else None,
        _array([real(rollout.columns.get(name, 0.0)) for name in columns]) if done else None,
        json_text(rollout.metrics),
        json_text(rollout.opening),
        json_text(rollout.steps),
        json_text(_bounded_messages(rollout.messages)),
        plain_text(rollout.steps[-1].reply[-EXCERPT_CHARACTERS:]) if rollout.steps else "",
        len(rollout.steps),
        rollout.is_truncated,
        _tokens(rollout),
        real(rollout.advantage),
        rollout.cost,
        rollout.source_id,
        rollout.started_at,
        rollout.ended_at,
        *(min(count, LARGEST_COUNT) for count in _counts_of(rollout)),
        *_durations_of(rollout),
    ]


def copy_line(row: Sequence[Any]) -> str:
    """A row as a line of COPY's text format; the driver's own writer looks at each value's type anew."""
    fields = [_escaped(value) if type(value) is str else "\\N" if value is None else str(value) for value in row]
    return "\t".join(fields) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _array(values: Sequence[float | None]) -> str:
    """As Postgres reads it: the driver's own lists are many times slower."""
    return "{" + ",".join("NULL" if value is None else repr(float(value)) for value in values) + "}"


def real(value: float | None) -> float | None:
    """A number that fits four bytes; Postgres refuses others instead of rounding them."""
    if value is None or not math.isfinite(value):
        return None
    if abs(value) > _LARGEST_REAL:
        return math.copysign(_LARGEST_REAL, value)
    return value if abs(value) > _SMALLEST_REAL else 0.0


def _bounded_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation of any length is stored in a few megabytes."""
    total = sum(map(_size, messages))
    if total <= MAX_STORED_BYTES:
        return messages
    limit = MAX_STORED_BYTES if total <= MAX_EPISODE_BYTES else MAX_EPISODE_BYTES // (3 * len(messages))
    return [_bounded_message(message, limit) for message in messages]


def _size(message: dict[str, Any]) -> int:
    results = message.get("results")
    return len(message["content"]) + len(message.get("reasoning", "")) + (sum(map(len, results)) if results else 0)


def _bounded_message(message: dict[str, Any], limit: int) -> dict[str, Any]:
    kept = {**message, "content": bounded_text(message["content"], limit)}
    if "reasoning" in message:
        kept["reasoning"] = bounded_text(message["reasoning"], limit)
    if results := message.get("results"):
        kept["results"] = [bounded_text(result, limit // len(results)) for result in results]
    return kept


def _tokens(rollout: Rollout) -> str | None:
    if rollout.token_texts is not None:
        texts = {"texts": rollout.token_texts, "logprobs": rollout.logprobs, "turns": rollout.token_turns}
        return json_text(texts)
    if rollout.completion_token_ids is None:
        return None
    tokens: dict[str, Any] = {
        "prompt": rollout.prompt_token_ids,
        "completion": rollout.completion_token_ids,
        "mask": rollout.completion_mask,
        "logprobs": rollout.logprobs,
    }
    if rollout.turn_advantages is not None:
        tokens["turn_advantages"] = rollout.turn_advantages
    return json_text(tokens)
