"""How an attempt ends: out of memory, on request, or by an alarm whose action cannot run."""

import uuid
from typing import Any

import pytest
import torch
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, PolicyKind, RunKind, RunStatus
from backend.runs.tables import Run
from backend.training.tables import Alarm, SettingChange
from tests.factories import make_policy, make_run
from workers.storage.steering import AlarmDraft, record_alarm
from workers.training.context import TrainingOutcome
from workers.training.run import finish, is_out_of_memory, out_of_memory, stopped_on_request


def training(**fields: Any) -> uuid.UUID:
    with transaction() as session:
        policy = make_policy(session, kind=PolicyKind.LOCAL)
        configuration = TrainingConfiguration().resolved()
        values = {"status": RunStatus.RUNNING, "progress": {"phase": "grpo", "done": 7}, "ended_at": None, **fields}
        return make_run(session, policy=policy, kind=RunKind.TRAINING, configuration=configuration, **values).id


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_mean_that_memory_is_used_up(error: Exception, answer: bool) -> None:
    assert is_out_of_memory(error) is answer


def test_out_of_memory_pauses_with_an_alarm_and_what_helps(installation: None) -> None:
    run_id = training()
    outcome = out_of_memory(run_id, MemoryError("no more"))
    assert outcome.status is RunStatus.PAUSED
    assert "no more" in (outcome.reason or "")
    assert "grpo.micro_batches" in (outcome.reason or "")
    finish(run_id, outcome, {})
    with transaction() as session:
        alarm = session.scalars(select(Alarm).where(Alarm.run_id == run_id)).one()
    assert (alarm.name, alarm.step, alarm.action) == ("out_of_memory", 7, AlarmAction.PAUSE)
    assert run_of(run_id).status is RunStatus.PAUSED
    with transaction() as session:
        session.add(SettingChange(run_id=run_id, name="alarms.out_of_memory", before="pause", after="stop"))
    assert out_of_memory(run_id, MemoryError()).status is RunStatus.STOPPED, "as it is set by now"


def test_a_request_is_a_pause_or_a_stop(installation: None) -> None:
    assert stopped_on_request(training(summary={"pause_requested": True})).status is RunStatus.PAUSED
    assert stopped_on_request(training()).status is RunStatus.STOPPED


def test_what_cannot_be_rolled_back_pauses_with_the_reason(installation: None) -> None:
    """No checkpoint was saved yet."""
    run_id = training()
    draft = AlarmDraft("format_fall", 7, "Fell.", AlarmAction.ROLL_BACK, "format_fall", 5, {})
    alarm_id, _ = record_alarm(run_id, draft)
    outcome = finish(run_id, TrainingOutcome(RunStatus.STOPPED, "Fell.", alarm_id), {"seen": 1})
    assert outcome.status is RunStatus.PAUSED
    run = run_of(run_id)
    assert (run.status, run.summary["seen"]) == (RunStatus.PAUSED, 1)
    assert "No checkpoint was saved" in (run.reason or "")


def test_the_same_alarm_after_a_resume_is_met_again(installation: None) -> None:
    run_id = training()
    draft = AlarmDraft("no_variance", 7, "Flat.", AlarmAction.NOTE, "no_variance", 1, {})
    first, again = record_alarm(run_id, draft), record_alarm(run_id, draft)
    assert (first[1], again[1]) == (True, False)
    assert first[0] == again[0]
