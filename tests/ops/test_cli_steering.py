"""Steering a training run from the command line: alarms, settings, a pause and a branch, as text and as JSON."""

import uuid

import pytest

from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, PolicyKind, RunKind, RunStatus
from tests.factories import make_checkpoint, make_policy, make_run
from tests.ops.commands import Command
from tests.ops.living import Living
from workers.storage.steering import AlarmDraft, record_alarm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


@pytest.fixture
def training(living: Living) -> str:
    """A run that trains, says its row, with a checkpoint and an open alarm."""
    with living.rows():
        with transaction() as session:
            policy = make_policy(session, kind=PolicyKind.LOCAL)
            run = make_run(
                session,
                policy=policy,
                kind=RunKind.TRAINING,
                status=RunStatus.RUNNING,
                ended_at=None,
                configuration=TrainingConfiguration().resolved(),
            )
            make_checkpoint(session, policy, run, stage="grpo", step=40, heldout_reward=0.5)
            run_id: uuid.UUID = run.id
        seen = AlarmDraft("format_fall", 60, "Format is down.", AlarmAction.NOTE, "format_fall", 50, {})
        record_alarm(run_id, seen)
    return str(run_id)


def test_an_open_alarm_is_a_bad_result_until_it_is_answered(command: Command, training: str) -> None:
    shown = command("run", "alarms", training)
    assert shown.status == 1
    assert "Format is down." in shown.out
    assert "Advice:" in shown.out
    assert "answers: lower_rate (Lower the learning rate), roll_back (Roll back), pause (Pause)" in shown.out
    refused = command("run", "answer", training, "format_fall", "save_memory")
    assert (refused.status, "has no effect on the alarm" in refused.err) == (2, True)
    assert command("run", "answer", training, "entropy_collapse", "dismiss").status == 2
    answered = command("run", "answer", training, "format_fall", "lower_rate", "--json")
    assert answered.json["alarm"]["answer"] == "lower_rate"
    again = command("run", "alarms", training, "--json")
    assert (again.status, again.json["items"][0]["is_open"]) == (0, False)
    assert command("run", "set", training, "--json").json["settings"]["grpo.learning_rate"] == 2.5e-4


def test_settings_are_shown_changed_and_changed_back(command: Command, training: str) -> None:
    said = command("run", "set", training, "grpo.learning_rate=1e-4", "budget.minutes=30")
    assert "grpo.learning_rate: 0.0005 → 0.0001 from the next step" in said.out
    assert "already has these values" in command("run", "set", training, "grpo.learning_rate=1e-4").out
    [first, _] = command("run", "set", training, "--json").json["changes"]
    assert command("run", "set", training, "--undo", first["id"][-8:]).status == 0
    table = command("run", "set", training).out
    assert "pending" in table
    assert "budget.minutes" in table
    assert "from the next resume" in command("run", "set", training, "grpo.micro_batches=2").out
    refused = command("run", "set", training, "grpo.group_size=2")
    assert (refused.status, "cannot be changed" in refused.err) == (2, True)
    assert command("run", "set", training, "nonsense").status == 2


def test_a_pause_and_a_branch(command: Command, training: str) -> None:
    assert "pauses after the current step" in command("run", "pause", training).out
    started = command(
        "run", "branch", training, "--step", "40", "--set", "grpo.learning_rate=1e-4", "--no-wait", "--json"
    )
    assert (started.json["source_run_id"], started.json["branch_step"]) == (training, 40)
    assert command("run", "stop", started.json["id"]).status == 0
    nowhere = command("run", "branch", training, "--step", "41", "--no-wait")
    assert (nowhere.status, "no such checkpoint" in nowhere.err) == (2, True)
    elsewhere = command("run", "branch", training, "--step", "40", "--version", "99", "--no-wait")
    assert (elsewhere.status, "v99" in elsewhere.err) == (2, True)
