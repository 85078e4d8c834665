"""A rollout that Postgres refuses is stored as failed with its reason; its siblings are stored, and nothing retries."""

import time
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Step
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from backend.rollouts.tables import Rollout
from tests.runs.recording.conftest import make_rollout
from workers.storage.recorder import RolloutWriter, RunRecorder


class _NoJson:
    """A value whose text cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no text")


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HARMLESS: dict[str, dict[str, Any]] = {
    "counts beyond four bytes": {"tokens_in": 2**63 - 1, "tokens_out": 2**40},
    "an observation with NUL and surrogates": {"opening": {"a\x00": "b\x00\ud800"}},
    "a number of thousands of digits": {"opening": {"a": 10**5000}},
    "a deep observation": {"opening": {"a": _nested(90)}},
    "not numbers": {"metrics": {"a": float("nan"), "b": float("inf")}},
    "a huge message": {"messages": [{"role": "user", "content": "x" * 9_000_000}]},
}
REFUSED: dict[str, dict[str, Any]] = {
    "seconds beyond four bytes": {"policy_seconds": 1e300},
    "attempts beyond two bytes": {"attempts": 2**20},
    "a value without text": {"opening": {"a": _NoJson()}},
}


def _stored(recorder: RunRecorder) -> dict[int, Rollout]:
    with transaction() as session:
        rows = session.scalars(select(Rollout).where(Rollout.run_id == recorder.run_id).order_by(Rollout.seq))
        return dict(enumerate(rows))


@pytest.mark.parametrize("name", HARMLESS)
def test_what_foreign_code_may_send_is_stored(recorder: RunRecorder, name: str) -> None:
    assert recorder.store([make_rollout(0, **HARMLESS[name])]) == 1
    assert _stored(recorder)[0].status is RolloutStatus.COMPLETED


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_rollout_is_stored_as_failed_next_to_its_siblings(recorder: RunRecorder, name: str) -> None:
    began = time.monotonic()
    async with RolloutWriter(recorder) as writer:
        for group in range(3):
            await writer.put(make_rollout(group, **(REFUSED[name] if group == 1 else {})))
    first, refused, last = _stored(recorder).values()
    assert (first.status, last.status) == (RolloutStatus.COMPLETED, RolloutStatus.COMPLETED)
    assert (refused.status, refused.error_kind, refused.reward) == (RolloutStatus.FAILED, ErrorKind.LIMIT, None)
    assert str(refused.error_message).startswith("The rollout could not be stored: ")
    assert time.monotonic() - began < 20


def test_more_columns_than_a_list_can_hold_fail_the_rollout_and_are_not_waited_for(recorder: RunRecorder) -> None:
    """An index row has a limit, which Postgres reports like a lost connection."""
    recorder.columns = [f"c{number}" for number in range(3000)]
    columns = {name: 1.0 + number for number, name in enumerate(recorder.columns)}
    began = time.monotonic()
    assert recorder.store([make_rollout(0, columns=columns), make_rollout(1, columns={})]) == 2
    assert time.monotonic() - began < 20
    refused, sibling = _stored(recorder).values()
    assert (refused.status, refused.error_kind) == (RolloutStatus.FAILED, ErrorKind.LIMIT)
    assert sibling.status is RolloutStatus.COMPLETED


@pytest.mark.slow
def test_a_rollout_of_many_steps_fits_or_fails_alone(recorder: RunRecorder) -> None:
    step = Step("r" * 1_000_000, {}, {}, "", {}, False)
    assert recorder.store([make_rollout(0, steps=[step] * 300), make_rollout(1)]) == 2
    assert _stored(recorder)[1].status is RolloutStatus.COMPLETED
