"""Metric points, progress, log lines and the wish to stop."""

import math
import time
import uuid
from datetime import UTC, datetime

from sqlalchemy import select, update

from backend.core.session import transaction
from backend.domain.vocabulary import RunStatus
from backend.runs.tables import MetricPoint, Run, RunLogLine
from tests.runs.recording.conftest import run_of
from workers.storage import recorder as recording
from workers.storage.recorder import RunRecorder


def _points(run_id: uuid.UUID) -> list[tuple[str, int, float | None]]:
    with transaction() as session:
        query = select(MetricPoint).where(MetricPoint.run_id == run_id).order_by(MetricPoint.name, MetricPoint.step)
        return [(point.name, point.step, point.value) for point in session.scalars(query)]


def test_points_are_kept_and_nonsense_becomes_null(recorder: RunRecorder) -> None:
    recorder.metrics(1, {"reward": 0.5, "columns/win": math.nan})
    recorder.metrics(2, {"reward": math.inf})
    assert _points(recorder.run_id) == [("columns/win", 1, None), ("reward", 1, 0.5), ("reward", 2, None)]


def test_a_repeated_point_replaces_the_first_one(recorder: RunRecorder) -> None:
    recorder.metrics(1, {"reward": 0.5})
    recorder.metrics(1, {"reward": 0.75})
    assert _points(recorder.run_id) == [("reward", 1, 0.75)]


def test_progress_is_throttled_but_its_end_is_not(recorder: RunRecorder) -> None:
    for done in range(1, 101):
        recorder.progress(phase="playing", done=done, total=100, message="2 failed")
    progress = run_of(recorder.run_id).progress
    assert (progress["phase"], progress["done"], progress["total"]) == ("playing", 100, 100)
    assert progress["message"] == "2 failed"
    assert progress["rate"] > 0


def test_progress_between_is_written_at_most_four_times_a_second(recorder: RunRecorder) -> None:
    recorder.progress(phase="playing", done=1, total=100)
    recorder.progress(phase="playing", done=2, total=100)
    assert run_of(recorder.run_id).progress["done"] == 1
    time.sleep(recording.PROGRESS_SECONDS)
    recorder.progress(phase="playing", done=3, total=100)
    assert run_of(recorder.run_id).progress["done"] == 3


def test_a_run_that_another_job_ended_keeps_what_it_ended_with(recorder: RunRecorder) -> None:
    with transaction() as session:
        run = session.get_one(Run, recorder.run_id)
        run.status, run.progress = RunStatus.COMPLETED, {"done": 100, "total": 100}
    recorder.progress(phase="playing", done=52, total=100)
    assert run_of(recorder.run_id).progress == {"done": 100, "total": 100}


def test_log_lines_are_kept_in_order(recorder: RunRecorder) -> None:
    recorder.log("began")
    recorder.log("a reply held \x00 and \ud800", level="warning")
    with transaction() as session:
        lines = session.scalars(select(RunLogLine).where(RunLogLine.run_id == recorder.run_id).order_by(RunLogLine.id))
        found = [(line.level, line.message) for line in lines]
    shown = "a reply held \N{SYMBOL FOR NULL} and \N{REPLACEMENT CHARACTER}"
    assert found == [("info", "began"), ("warning", shown)]


def test_a_wish_to_stop_is_heard_within_half_a_second(recorder: RunRecorder) -> None:
    assert not recorder.should_stop()
    with transaction() as session:
        session.execute(update(Run).where(Run.id == recorder.run_id).values(stop_requested_at=datetime.now(UTC)))
    assert not recorder.should_stop()
    time.sleep(recording.STOP_CACHE_SECONDS)
    assert recorder.should_stop()
