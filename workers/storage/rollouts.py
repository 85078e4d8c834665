"""A rollout as a row for COPY. Models and environments may write anything; Postgres text cannot hold everything."""

import math
import uuid
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from backend.domain.ids import stable_id, stable_text
from backend.domain.rollouts.fields import MEASURED
from backend.domain.rollouts.rollout import Rollout, SeatPlay, Seats, Step
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from workers.rollouts.limits import MAX_EPISODE_BYTES, MAX_STORED_BYTES, bounded_text

_COUNTS = tuple(name for name, field in MEASURED.items() if field.is_whole)
_DURATIONS = tuple(name for name, field in MEASURED.items() if not field.is_whole)
_counts_of, _durations_of = attrgetter(*_COUNTS), attrgetter(*_DURATIONS)
COLUMNS = (
    *("id", "run_id", "group_id", "member", "seq", "phase", "training_step", "level"),
    *("status", "stop_reason", "error_kind", "error_message", "attempts", "reward", "columns", "metrics"),
    *("opening", "steps", "messages", "excerpt", "turns", "is_truncated", "tokens", "seat", "seats", "advantage"),
    *("cost", "source_id", "started_at", "ended_at"),
    *_COUNTS,
    *_DURATIONS,
)
SEQ = COLUMNS.index("seq")
EXCERPT_CHARACTERS = 300
MAX_MESSAGE_CHARACTERS = 20_000
MAX_COUNT = 2**31 - 1
LARGEST_REAL, SMALLEST_REAL = 3.4e38, 1.2e-38
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def group_id(run_id: uuid.UUID | str, rollout: Rollout) -> str:
    return stable_text("group", run_id, rollout.phase, rollout.training_step, rollout.group)


def rollout_id(run_id: uuid.UUID, rollout: Rollout) -> uuid.UUID:
    return stable_id("rollout", group_id(run_id, rollout), rollout.member)


def unstorable(rollout: Rollout, problem: str) -> Rollout:
    """The failed rollout without content that replaces one that the database refuses."""
    same = ("task", "phase", "group", "member", "training_step", "started_at", "ended_at", "source_id")
    message = f"The rollout could not be stored: {problem}"
    values: dict[str, Any] = {name: getattr(rollout, name) for name in same}
    return Rollout(**values, status=RolloutStatus.FAILED, error_kind=ErrorKind.LIMIT, error_message=message)


def row_of(run_id: uuid.UUID | str, rollout: Rollout, columns: Sequence[str], group: str = "") -> list[object]:
    """Values in the order of COLUMNS, ids as text. `seq` is set under the run's lock. `group`: its id, if known."""
    group, is_done, tokens = group or group_id(run_id, rollout), rollout.is_completed, rollout.tokens
    return [
        stable_text("rollout", group, rollout.member),
        str(run_id),
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
        real(rollout.reward) if is_done else None,
        postgres_array([real(rollout.columns.get(name, 0.0)) for name in columns]) if is_done else None,
        json_text(rollout.metrics),
        json_text(rollout.opening),
        json_text(rollout.steps),
        json_text(_bounded_messages(rollout.messages)),
        plain_text(rollout.steps[-1].reply[-EXCERPT_CHARACTERS:]) if rollout.steps else "",
        len(rollout.steps),
        rollout.is_truncated,
        None if tokens is None else json_text(tokens),
        rollout.seats and rollout.seats.seat,
        None if rollout.seats is None else json_text(_bounded_seats(rollout.seats)),
        real(rollout.advantage),
        rollout.cost,
        rollout.source_id,
        rollout.started_at,
        rollout.ended_at,
        *(min(count, MAX_COUNT) for count in _counts_of(rollout)),
        *_durations_of(rollout),
    ]


def copy_line(row: Sequence[object]) -> str:
    """A row as a line of COPY's text format. The driver's own writer checks each value's type again."""
    fields = []
    for value in row:
        if type(value) is str:
            for character, escaped in _ESCAPES:
                if character in value:  # `replace` alone takes fifty times as long to find none
                    value = value.replace(character, escaped)
            fields.append(value)
        else:
            fields.append("\\N" if value is None else str(value))
    return "\t".join(fields) + "\n"


def postgres_array(values: Sequence[float | None]) -> str:
    """An array as Postgres reads it. The driver's own lists are many times slower."""
    return "{" + ",".join("NULL" if value is None else repr(float(value)) for value in values) + "}"


def real(value: float | None) -> float | None:
    """A number that fits four bytes. Postgres refuses others instead of rounding them."""
    if value is None or not math.isfinite(value):
        return None
    if abs(value) > LARGEST_REAL:
        return math.copysign(LARGEST_REAL, value)
    return value if abs(value) > SMALLEST_REAL else 0.0


def read_seats(stored: dict[str, Any] | None) -> Seats | None:
    """The replies of the other seats of a stored rollout, for replays."""
    if stored is None:
        return None
    others = []
    for play in stored["others"]:
        stop = StopReason(play["stop_reason"]) if play["stop_reason"] else None
        steps = [Step(str(step["reply"])) for step in play["steps"]]
        others.append(SeatPlay(play["seat"], play["policy"], stop_reason=stop, steps=steps))
    return Seats(stored["seat"], others, stored["order"])


def _bounded_seats(seats: Seats) -> Seats:
    others = [replace(each, messages=_bounded_messages(each.messages)) for each in seats.others]
    return replace(seats, others=others)


def _bounded_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cut a conversation of any length to a few megabytes."""
    total = 0
    for message in messages:
        total += len(message["content"]) + len(message.get("reasoning", ""))
        if results := message.get("results"):
            total += sum(map(len, results))
    if total <= MAX_STORED_BYTES:
        return messages
    limit = MAX_STORED_BYTES if total <= MAX_EPISODE_BYTES else MAX_EPISODE_BYTES // (3 * len(messages))
    bounded = []
    for message in messages:
        cut: dict[str, Any] = {
            name: bounded_text(message[name], limit) for name in ("content", "reasoning") if name in message
        }
        if results := message.get("results"):
            cut["results"] = [bounded_text(result, limit // len(results)) for result in results]
        bounded.append({**message, **cut})
    return bounded
