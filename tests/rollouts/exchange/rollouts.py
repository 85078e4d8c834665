"""Rollouts for these tests: stored ones with all that they can hold, and what came of them elsewhere."""

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.session import transaction
from backend.domain.vocabulary import ErrorKind, RolloutStatus, StopReason
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run
from tests.factories import make_group, make_rollout, make_step

STARTED = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "Play."},
    {"role": "user", "content": "Board? «ä» 你好"},
    {"role": "assistant", "content": "<move>4</move>", "reasoning": "The middle is best."},
    {"role": "user", "content": "O plays 1."},
    {"role": "assistant", "content": "<move>9</move>", "not_made": [{"name": "look", "arguments": {"at": 1}}]},
]
TOKENS: dict[str, list[Any]] = {
    "prompt": [1, 2, 3],
    "completion": [7, 8, 2, 5, 6, 9, 2],
    "mask": [1, 1, 1, 0, 0, 1, 1],
    "logprobs": [-0.5, -0.25, -0.125, 0.0, 0.0, -1.5, -0.75],
    "turn_advantages": [0.25, -0.5],
}


def store_rich(session: Session, run: Run) -> None:
    """Three groups of two; one rollout failed, one was cut."""
    for index in range(3):
        group = make_group(session, run, index=index)
        for member in range(2):
            _store(session, run, group, member)


def _store(session: Session, run: Run, group: Group, member: int) -> None:
    is_failed = group.ordinal == 1 and member == 1
    is_cut = group.ordinal == 2 and member == 0
    values: dict[str, Any] = {
        "messages": SAID[:2] if is_failed else SAID,
        "steps": [] if is_failed else [_step(4, done=False), _step(9, done=True)],
        "metrics": {} if is_failed else {"moves": 2.0},
        "tokens": TOKENS if group.ordinal == 0 else None,
        "attempts": 3 if is_failed else 1,
        "is_truncated": is_cut,
        "cost": 0.00125,
        "queue_seconds": 0.5,
        "started_at": STARTED,
        "ended_at": STARTED.replace(second=3),
        "turns": 0 if is_failed else 2,
        "advantage": None if is_failed else 0.25,
    }
    if is_cut:
        values["stop_reason"] = StopReason.MAX_TURNS
    if is_failed:
        values |= {"status": RolloutStatus.FAILED, "error_kind": ErrorKind.POLICY, "error_message": "no answer"}
    make_rollout(session, run, group, None if is_failed else [1.0, 0.7, member], member=member, **values)


def _step(cell: int, *, done: bool) -> dict[str, Any]:
    return make_step(f"<move>{cell}</move>", {"win": float(done)}, action={"cell": cell}, done=done, queue_seconds=0.1)


def stored(run_id: str | uuid.UUID) -> list[Rollout]:
    """All rollouts of a run, whole."""
    whole = [undefer(getattr(Rollout, name)) for name in ("messages", "steps", "opening", "tokens")]
    statement = select(Rollout).where(Rollout.run_id == uuid.UUID(str(run_id))).order_by(Rollout.seq)
    with transaction() as session:
        return list(session.scalars(statement.options(*whole, joinedload(Rollout.group).joinedload(Group.task))))


def compared(rollout: Rollout) -> dict[str, Any]:
    """What must come back equal."""
    names = (
        *("status", "stop_reason", "error_kind", "error_message", "attempts", "reward", "columns", "metrics"),
        *("opening", "messages", "turns", "tokens_in", "tokens_out", "is_truncated", "tokens", "advantage", "cost"),
        *("policy_seconds", "environment_seconds", "queue_seconds", "started_at", "ended_at", "member", "level"),
    )
    task = rollout.group.task
    steps = [{name: value for name, value in step.items() if value is not None} for step in rollout.steps]
    said = {name: getattr(rollout, name) for name in names}
    return {**said, "steps": steps, "task": (task.split, task.index, task.seed), "group": rollout.group.ordinal}


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
