"""A training process seen from outside: stalls, kills, and what the run's row says afterwards."""

import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.training.alarms import CLEARED
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, RunKind, RunStatus
from backend.runs.tables import MetricPoint, Run
from backend.training.tables import Alarm
from tests.factories import make_run
from workers.tasks.training import STARTUP_FACTOR, TrainingWatchdog, count_memory_kills

IMPATIENT = {"stall_seconds": 0.05, "stall_factor": 2}


def training(**alarms: Any) -> uuid.UUID:
    """A run that is at its seventh step; a step takes a hundredth of a second."""
    configuration = TrainingConfiguration.model_validate({"alarms": alarms}).resolved()
    with transaction() as session:
        run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, configuration=configuration)
        run.progress = {"phase": "grpo", "done": 7, "total": 20}
        for step in range(1, 8):
            session.add(MetricPoint(run_id=run.id, name="seconds/step", step=step, value=0.01))
        return run.id


def alarm_of(run_id: uuid.UUID) -> Alarm:
    with transaction() as session:
        return session.scalars(select(Alarm).where(Alarm.run_id == run_id)).one()


def move_on(run_id: uuid.UUID) -> None:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        run.progress = {**run.progress, "done": run.progress["done"] + 1}


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def test_a_run_that_gets_on_is_left_alone(installation: None) -> None:
    run_id = training(**IMPATIENT, stall="pause")
    watchdog = TrainingWatchdog(run_id)
    for _ in range(4):
        assert watchdog.may_continue()
        time.sleep(0.03)
        move_on(run_id)


def test_a_stall_is_noted_once_and_over_when_the_run_gets_on(installation: None) -> None:
    run_id = training(**IMPATIENT)
    watchdog = TrainingWatchdog(run_id)
    watchdog.may_continue()
    time.sleep(0.08)
    assert watchdog.may_continue()
    assert watchdog.may_continue()
    alarm = alarm_of(run_id)
    assert (alarm.name, alarm.step, alarm.action) == ("stall", 7, AlarmAction.NOTE)
    assert "Nothing has happened" in alarm.sentence
    move_on(run_id)
    assert watchdog.may_continue()
    assert alarm_of(run_id).evidence[CLEARED] == 8


def test_a_stall_that_pauses_ends_the_process_and_the_run(installation: None) -> None:
    run_id = training(**IMPATIENT, stall="pause")
    watchdog = TrainingWatchdog(run_id)
    watchdog.may_continue()
    time.sleep(0.08)
    assert not watchdog.may_continue()
    assert watchdog.ends_run(-signal.SIGTERM), "no other attempt follows"
    assert run_of(run_id).status is RunStatus.PAUSED
    assert "Alarm stall" in (run_of(run_id).reason or "")


def test_slow_steps_are_no_stall(installation: None) -> None:
    run_id = training(stall_seconds=0.01, stall_factor=100)
    watchdog = TrainingWatchdog(run_id)
    watchdog.may_continue()
    time.sleep(0.05)
    assert watchdog.may_continue()
    with transaction() as session:
        assert session.scalars(select(Alarm)).all() == []
    assert STARTUP_FACTOR > 1


@pytest.mark.parametrize(("action", "status"), [("pause", RunStatus.PAUSED), ("stop", RunStatus.STOPPED)])
def test_a_kill_for_memory_ends_the_run_with_what_helps(installation: None, action: str, status: RunStatus) -> None:
    run_id = training(out_of_memory=action)
    kills = iter([3, 4])
    assert TrainingWatchdog(run_id, memory_kills=lambda: next(kills)).ends_run(-signal.SIGKILL)
    assert alarm_of(run_id).name == "out_of_memory"
    run = run_of(run_id)
    assert run.status is status
    assert "grpo.micro_batches" in (run.reason or "")


def test_any_other_kill_is_noted_and_tried_again(installation: None) -> None:
    run_id = training()
    assert not TrainingWatchdog(run_id, memory_kills=lambda: 3).ends_run(-signal.SIGKILL)
    assert alarm_of(run_id).name == "process_killed"
    assert "SIGKILL" in alarm_of(run_id).sentence
    assert run_of(run_id).status is RunStatus.RUNNING


def test_an_exit_with_a_status_is_no_alarm(installation: None) -> None:
    run_id = training()
    assert not TrainingWatchdog(run_id).ends_run(1)
    with transaction() as session:
        assert session.scalars(select(Alarm)).all() == []


@pytest.mark.parametrize(
    ("lines", "file", "text"),
    [
        ("0::/user/job\n", "user/job/memory.events", "low 0\noom 2\noom_kill 2\n"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("4:memory:/elsewhere\n0::/\n", "memory/memory.oom_control", "oom_kill 2\n"),
    ],
    ids=["version 2", "version 1", "version 1 inside of a container"],
)
def test_kills_for_memory_are_counted_in_our_control_group(tmp_path: Path, lines: str, file: str, text: str) -> None:
    (tmp_path / "cgroup").write_text(lines)
    (tmp_path / "groups" / file).parent.mkdir(parents=True)
    (tmp_path / "groups" / file).write_text(text)
    assert count_memory_kills(tmp_path, tmp_path / "groups") == 2
