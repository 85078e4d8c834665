"""The thread between the engine and Postgres: batches, back-pressure, outages, nothing lost."""

import asyncio
import threading
import uuid
from collections.abc import Sequence

import psycopg
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import NoResultFound

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.rollouts.tables import Rollout as RolloutRow
from backend.settings import get_settings
from tests.runs.recording.conftest import make_rollout
from workers.rollouts import limits
from workers.storage.recorder import RolloutWriter, RunRecorder


def _count(run_id: uuid.UUID) -> int:
    with transaction() as session:
        return session.scalar(select(func.count(RolloutRow.id)).where(RolloutRow.run_id == run_id)) or 0


async def test_all_is_stored_at_the_end_in_few_batches(recorder: RunRecorder) -> None:
    batches: list[int] = []
    async with RolloutWriter(recorder, after_batch=lambda batch: batches.append(len(batch))) as rollouts:
        for group in range(700):
            await rollouts.put(make_rollout(group))
    assert _count(recorder.run_id) == sum(batches) == 700
    assert len(batches) <= 4


async def test_what_was_put_is_stored_also_when_the_play_breaks(recorder: RunRecorder) -> None:
    async def break_off() -> None:
        async with RolloutWriter(recorder) as rollouts:
            await rollouts.put(make_rollout(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await break_off()
    assert _count(recorder.run_id) == 1


async def test_the_loop_continues_while_postgres_is_slow(
    recorder: RunRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING", 10)
    monkeypatch.setattr(limits, "BATCH_SIZE", 5)
    gate = threading.Event()
    slow = RolloutWriter(recorder, after_batch=lambda batch: _wait(gate))
    ticks = 0
    async with slow as rollouts:
        putting = asyncio.create_task(_put_all(rollouts, 40))
        while ticks < 20:
            await asyncio.sleep(0.005)
            ticks += 1
        assert not putting.done()
        gate.set()
        await putting
    assert _count(recorder.run_id) == 40


def _wait(gate: threading.Event) -> None:
    assert gate.wait(5)


async def _put_all(rollouts: RolloutWriter, count: int) -> None:
    for group in range(count):
        await rollouts.put(make_rollout(group))


@pytest.mark.slow
async def test_a_lost_connection_is_survived(recorder: RunRecorder) -> None:
    async with RolloutWriter(recorder, after_batch=_cut_all_connections) as rollouts:
        for group in range(3):
            await rollouts.put(make_rollout(group))
            await asyncio.sleep(0.4)
    assert _count(recorder.run_id) == 3


def _cut_all_connections(batch: Sequence[Rollout]) -> None:
    with psycopg.connect(get_settings().database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.slow
async def test_an_error_that_stays_ends_the_play(recorder: RunRecorder) -> None:
    with transaction() as session:
        session.execute(text("DELETE FROM runs WHERE id = :id"), {"id": recorder.run_id})

    async def put_for_two_seconds() -> None:
        async with RolloutWriter(recorder) as rollouts:
            for group in range(100):
                await rollouts.put(make_rollout(group))
                await asyncio.sleep(0.02)

    with pytest.raises(NoResultFound):
        await put_for_two_seconds()
