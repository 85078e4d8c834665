"""Steering while a run trains: settings between steps, pauses, alarms that act, branches; resumed bit by bit."""

import math
import shutil
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import torch
from sqlalchemy import select

from backend.checkpoints.tables import Checkpoint
from backend.core.queue import enqueue
from backend.core.session import transaction
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, RunStatus
from backend.runs.service import resume_run
from backend.runs.tables import Run, RunLogLine
from backend.settings import get_settings
from backend.training.alarms import answer_alarm
from backend.training.branches import JOB, checkpoint_for, start_branch
from backend.training.tables import Alarm, SettingChange
from tests.factories import make_member
from tests.training.conftest import (
    built_in,
    checkpoints_of,
    counts_of,
    kill,
    make_run,
    points_of,
    run_of,
    start_child,
    take_up_again,
    wait_for_step,
    weights_of,
)
from workers.training import trl_grpo
from workers.training.run import train
from workers.training.trl_grpo import GrpoTrainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

NewRun = Callable[..., uuid.UUID]


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All runs continue from the same warm-up."""


@pytest.fixture(scope="module")
def warmed_up(installation: None) -> Checkpoint:
    run_id = make_run(recipe="sft")
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return checkpoints_of(run_id)["sft", 12]


@pytest.fixture
def new_run(warmed_up: Checkpoint) -> NewRun:
    """A run of reinforcement alone."""
    return partial(make_run, recipe="grpo", model={"source": "checkpoint", "checkpoint": warmed_up.id})


def change(run_id: uuid.UUID, name: str, before: Any, after: Any, step: int | None = None) -> None:
    """As a person requests it, or as it was applied."""
    with transaction() as session:
        session.add(SettingChange(run_id=run_id, name=name, before=before, after=after, step=step))


def alarms_of(run_id: uuid.UUID) -> list[Alarm]:
    with transaction() as session:
        return list(session.scalars(select(Alarm).where(Alarm.run_id == run_id).order_by(Alarm.id)))


def alarm_of(run_id: uuid.UUID, name: str) -> Alarm:
    [alarm] = [alarm for alarm in alarms_of(run_id) if alarm.name == name]
    return alarm


def log_of(run_id: uuid.UUID) -> str:
    with transaction() as session:
        return "\n".join(session.scalars(select(RunLogLine.message).where(RunLogLine.run_id == run_id)))


def test_a_changed_setting_is_used_from_its_step_on_and_survives_a_kill(new_run: NewRun) -> None:
    """The killed run reaches the weights of an uninterrupted one with the same changes at the same steps."""
    longer = {"grpo": {"steps": 8}, "heldout": {"every": 8}, "checkpoints": {"every": 2}}
    cut = new_run(**longer)
    child = start_child(cut)
    wait_for_step(cut, 2)
    change(cut, "grpo.learning_rate", 5e-4, 1e-4)
    change(cut, "grpo.temperature", 1.0, 0.9)
    change(cut, "heldout.every", 8, 3)
    wait_for_step(cut, 5)
    kill(child)
    take_up_again(cut)
    assert train(cut).status is RunStatus.COMPLETED, run_of(cut).reason

    with transaction() as session:
        rows = list(session.scalars(select(SettingChange).where(SettingChange.run_id == cut)))
    [first] = {row.step for row in rows}
    assert first is not None
    assert 3 <= first <= 5
    whole = new_run(**longer)
    for row in rows:
        change(whole, row.name, row.before, row.after, row.step)
    assert train(whole).status is RunStatus.COMPLETED
    assert weights_of(checkpoints_of(cut)["grpo", 8]) == weights_of(checkpoints_of(whole)["grpo", 8])
    factors = points_of(cut)["lr_factor"]
    assert [factors[step] for step in range(1, 9)] == pytest.approx([1.0] * (first - 1) + [0.2] * (9 - first))
    examined = [step for stage, step in checkpoints_of(whole) if stage == "grpo"]
    assert examined == [step for step in (3, 6, 8) if step >= first - 1]
    assert "grpo.learning_rate: 0.0005 → 0.0001 from step" in log_of(cut)


def paused_at(new_run: NewRun, **choices: Any) -> tuple[uuid.UUID, int]:
    """A run that a person paused in the middle of GRPO, and the step that it reached."""
    run_id = new_run(**choices)
    child = start_child(run_id)
    wait_for_step(run_id, 2)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        run.stop_requested_at, run.summary = datetime.now(UTC), {"pause_requested": True}
    assert child.wait(300) == 0
    [step] = [step for stage, step in checkpoints_of(run_id) if stage == "grpo"]
    return run_id, step


def test_a_branch_from_a_paused_run_continues_bit_by_bit_and_without_its_state_with_the_weights_alone(
    new_run: NewRun,
) -> None:
    longer = {"grpo": {"steps": 6}, "heldout": {"every": 6}}
    whole = new_run(**longer)
    train(whole)
    source, step = paused_at(new_run, **longer)
    assert run_of(source).status is RunStatus.PAUSED
    assert "Paused on request" in (run_of(source).reason or "")

    exact, anew = branch(source, step), branch(source, step, {"grpo.learning_rate": 1e-4})
    assert train(exact).status is RunStatus.COMPLETED, run_of(exact).reason
    assert weights_of(checkpoints_of(exact)["grpo", 6]) == weights_of(checkpoints_of(whole)["grpo", 6])
    assert sorted(points_of(exact)["reward"]) == list(range(step + 1, 7))
    assert points_of(exact)["divergence"][6] == points_of(whole)["divergence"][6]
    assert "the trainer's whole state" in log_of(exact)

    shutil.rmtree(get_settings().data / "training" / str(source) / "grpo")
    assert train(anew).status is RunStatus.COMPLETED, run_of(anew).reason
    assert "the optimizer starts fresh" in log_of(anew)
    rates, planned = points_of(anew)["learning_rate"], points_of(whole)["learning_rate"]
    assert sorted(rates) == list(range(step + 1, 7))
    for at, rate in rates.items():
        assert rate == pytest.approx((planned[at] or 0) / 5), "the schedule goes on where it was, times the factor"
    assert points_of(anew)["divergence"][step + 1] != pytest.approx(0, abs=1e-7), "measured from before GRPO"
    assert not {at for phase, at in counts_of(anew) if phase == "train" and at <= step}


def test_a_branch_begins_where_grpo_began_and_not_at_the_last_checkpoint_of_the_warm_up(installation: None) -> None:
    """Nothing is learned at such a rate: of equally good checkpoints the earliest is continued."""
    warm_up = {"steps": 4, "examine_every": 2, "learning_rate": 1e-6}
    source = make_run(sft=warm_up, grpo={"steps": 2}, heldout={"every": 1, "tasks": 3})
    assert train(source).status is RunStatus.COMPLETED, run_of(source).reason
    saved = checkpoints_of(source)
    assert saved["sft", 2].heldout_reward == saved["sft", 4].heldout_reward
    assert weights_of(saved["sft", 2]) != weights_of(saved["sft", 4])
    with transaction() as session:
        start = checkpoint_for(session, run_of(source), None, 0)
    assert (start.stage, start.step) == ("sft", 2)
    from_start, from_step = branch(source, 0, checkpoint=start), branch(source, 1)
    for repeated in (from_start, from_step):
        assert train(repeated).status is RunStatus.COMPLETED, run_of(repeated).reason
        assert weights_of(checkpoints_of(repeated)["grpo", 2]) == weights_of(saved["grpo", 2])
        assert points_of(repeated)["divergence"][2] == points_of(source)["divergence"][2]


def branch(
    source: uuid.UUID, step: int, changes: dict[str, Any] | None = None, *, checkpoint: Checkpoint | None = None
) -> uuid.UUID:
    """A branch that a worker has claimed."""
    with transaction() as session:
        trainer = make_member(session)
        at = checkpoint or checkpoints_of(source)["grpo", step]
        row = start_branch(session, trainer, run_of(source), at, changes)
        row.status, row.attempt = RunStatus.RUNNING, 1
        assert (row.source_run_id, row.branch_step) == (source, step)
        return row.id


def test_numbers_that_are_none_pause_the_run_and_the_spoiled_state_is_not_saved(new_run: NewRun) -> None:
    files = built_in("tictactoe")
    files["openenv.yaml"] = files["openenv.yaml"].replace("format: {weight: 0.2", "format: {weight: 1.0e+30")
    run_id = new_run(files)
    assert train(run_id).status is RunStatus.PAUSED
    alarm = alarm_of(run_id, "not_finite")
    assert (alarm.step, alarm.action) == (1, AlarmAction.PAUSE)
    assert "grad_norm is inf" in alarm.sentence
    assert "Alarm not_finite" in (run_of(run_id).reason or "")
    assert not [step for stage, step in checkpoints_of(run_id) if stage == "grpo"]
    assert not list((get_settings().data / "training" / str(run_id) / "grpo").glob("checkpoint-*"))


LOUD = {"grace_steps": 0, "divergence_limit": 1e-12}
"""Every policy that learns is too far from its beginning."""


def test_an_alarm_that_rolls_back_stops_the_run_and_starts_a_branch_with_a_lower_rate(new_run: NewRun) -> None:
    run_id = new_run(grpo={"steps": 13}, heldout={"every": 13}, alarms={**LOUD, "divergence": "roll_back"})
    assert train(run_id).status is RunStatus.STOPPED
    alarm = alarm_of(run_id, "divergence")
    assert (alarm.step, alarm.action) == (10, AlarmAction.ROLL_BACK)
    with transaction() as session:
        [row] = session.scalars(select(Run).where(Run.source_run_id == run_id)).all()
        [lower] = session.scalars(select(SettingChange).where(SettingChange.run_id == row.id)).all()
    assert (row.status, row.branch_step, row.created_by) == (RunStatus.QUEUED, 0, None)
    assert (lower.name, lower.before, lower.after, lower.step) == ("grpo.learning_rate", 5e-4, 2.5e-4, 1)
    assert row.name in (run_of(run_id).reason or "")


def test_an_alarm_that_lowers_the_rate_does_it_once_and_a_pause_is_resumed_past_it(new_run: NewRun) -> None:
    alarms = {**LOUD, "divergence": "lower_rate"}
    run_id = new_run(grpo={"steps": 13}, heldout={"every": 13}, alarms=alarms)
    assert train(run_id).status is RunStatus.COMPLETED
    factors = points_of(run_id)["lr_factor"]
    assert [factors[step] for step in range(1, 14)] == [1.0] * 10 + [0.5] * 3
    alarm = alarm_of(run_id, "divergence")
    with transaction() as session:
        [row] = session.scalars(select(SettingChange).where(SettingChange.run_id == run_id)).all()
    assert (row.alarm_id, row.step, row.asked_by) == (alarm.id, 11, None)

    alarms = {**LOUD, "divergence": "pause"}
    paused = new_run(grpo={"steps": 12}, heldout={"every": 13}, alarms=alarms)
    assert train(paused).status is RunStatus.PAUSED
    assert ("grpo", 10) in checkpoints_of(paused)
    with transaction() as session:
        enqueue(session, JOB, queue="gpu", run_id=paused)
        resume_run(session, make_member(session), session.get_one(Run, paused))
    take_up_again(paused)
    assert train(paused).status is RunStatus.COMPLETED, "the same episode of the condition is no new alarm"
    assert alarm_of(paused, "divergence").step == 10


def test_a_warm_up_that_does_not_learn_pauses_the_run(installation: None) -> None:
    run_id = make_run(sft={"steps": 60, "learning_rate": 1.0, "batch": 8}, alarms={"warm_up_flat": "pause"})
    assert train(run_id).status is RunStatus.PAUSED
    assert alarm_of(run_id, "warm_up_flat").step < 60
    assert list(checkpoints_of(run_id)) == [("untrained", 0)]


def answered(run_id: uuid.UUID, name: str, answer: AlarmAnswer) -> None:
    """By a person, with one click."""
    alarm = [alarm for alarm in alarms_of(run_id) if alarm.name == name][-1]
    with transaction() as session:
        answer_alarm(session, make_member(session), session.get_one(Run, run_id), alarm.id, answer)


def resumed(run_id: uuid.UUID) -> None:
    """By a person, and a worker takes it up."""
    with transaction() as session:
        resume_run(session, make_member(session), session.get_one(Run, run_id))
    take_up_again(run_id)


def with_job(run_id: uuid.UUID) -> uuid.UUID:
    """As it was started, so that it can be resumed."""
    with transaction() as session:
        enqueue(session, JOB, queue="gpu", run_id=run_id)
    return run_id


def test_a_run_that_was_out_of_memory_continues_from_its_last_state_in_smaller_parts(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a GPU with room for half of a step's episodes."""
    run_id = with_job(new_run(grpo={"steps": 6}, heldout={"every": 6}))
    rows: list[tuple[int, int]] = []
    compute = GrpoTrainer._compute_loss

    def with_little_room(trainer: Any, model: Any, inputs: dict[str, Any]) -> Any:
        rows.append((trainer.state.global_step + 1, len(inputs["completion_ids"])))
        if rows[-1][0] >= 3 and rows[-1][1] > 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return compute(trainer, model, inputs)

    monkeypatch.setattr(GrpoTrainer, "_compute_loss", with_little_room)
    assert train(run_id).status is RunStatus.PAUSED
    assert rows[-1] == (3, 12)
    resumed(run_id)
    assert train(run_id).status is RunStatus.PAUSED, "the same need, the same end"
    assert rows[-1] == (3, 12)

    answered(run_id, "out_of_memory", AlarmAnswer.SAVE_MEMORY)
    assert run_of(run_id).status is RunStatus.QUEUED, "one click resumes it too"
    take_up_again(run_id)
    rows.clear()
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert rows == [(step, 6) for step in range(3, 7) for _ in range(2)]
    with transaction() as session:
        [row] = session.scalars(select(SettingChange).where(SettingChange.run_id == run_id)).all()
    assert (row.name, row.before, row.after, row.step) == ("grpo.micro_batches", 1, 2, 3)


def test_activations_that_are_computed_twice_from_a_resume_on_change_nothing_in_what_is_learned(
    new_run: NewRun,
) -> None:
    longer = {"grpo": {"steps": 4}, "heldout": {"every": 4}}
    whole = new_run(**longer)
    assert train(whole).status is RunStatus.COMPLETED
    run_id, _ = paused_at(new_run, **longer)
    change(run_id, "hardware.gradient_checkpointing", False, True)
    take_up_again(run_id)
    with transaction() as session:
        session.get_one(Run, run_id).summary = {}
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert "hardware.gradient_checkpointing: False → True from step" in log_of(run_id)
    assert weights_of(checkpoints_of(run_id)["grpo", 4]) == weights_of(checkpoints_of(whole)["grpo", 4])


def test_a_step_that_is_not_enough_smaller_raises_the_alarm_again(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = with_job(new_run(grpo={"steps": 2}, heldout={"every": 2}))

    def without_room(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(GrpoTrainer, "_compute_loss", without_room)
    assert train(run_id).status is RunStatus.PAUSED
    answered(run_id, "out_of_memory", AlarmAnswer.SAVE_MEMORY)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.PAUSED
    assert [alarm.answer for alarm in alarms_of(run_id)] == [AlarmAnswer.SAVE_MEMORY, None]


def test_a_rate_that_was_lowered_while_the_run_paused_is_used_by_its_first_step(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is no number at the old rate is met again at the lower one, not once more at the old."""
    run_id = with_job(new_run(grpo={"steps": 6}, heldout={"every": 6}, checkpoints={"every": 2}))
    finish = trl_grpo._Bridge._step

    def spoiled_by_the_rate(bridge: Any, step: int, *arguments: Any) -> Any:
        made = finish(bridge, step, *arguments)
        if step == 4 and made.figures["lr_factor"] == 1.0:
            made.figures["loss"] = math.nan
        return made

    monkeypatch.setattr(trl_grpo._Bridge, "_step", spoiled_by_the_rate)
    assert train(run_id).status is RunStatus.PAUSED
    assert alarm_of(run_id, "not_finite").step == 4
    answered(run_id, "not_finite", AlarmAnswer.LOWER_RATE)
    resumed(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    factors = points_of(run_id)["lr_factor"]
    assert [factors[step] for step in range(1, 7)] == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]


FLAT = {"sft": {"steps": 60, "learning_rate": 1.0, "batch": 8}, "recipe": "sft"}
"""At this rate nothing is learned."""


def test_a_warm_up_that_paused_because_it_was_flat_is_resumed_past_it(installation: None) -> None:
    run_id = with_job(make_run(**FLAT, alarms={"warm_up_flat": "pause"}))
    assert train(run_id).status is RunStatus.PAUSED
    resumed(run_id)
    child = start_child(run_id)
    while len(points_of(run_id).get("sft/loss", {})) < 10:
        assert child.poll() is None, run_of(run_id).reason
        time.sleep(0.02)
    kill(child)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, "the same episode of the condition is no new alarm"
    assert alarm_of(run_id, "warm_up_flat").action is AlarmAction.PAUSE


def test_a_warm_ups_rate_is_lowered_by_one_click_and_survives_a_kill(installation: None) -> None:
    run_id = with_job(make_run(**FLAT, alarms={"warm_up_flat": "pause", "rate_factor": 0.001}))
    assert train(run_id).status is RunStatus.PAUSED
    first = alarm_of(run_id, "warm_up_flat").step
    answered(run_id, "warm_up_flat", AlarmAnswer.LOWER_RATE)
    resumed(run_id)
    child = start_child(run_id)
    while max(points_of(run_id)["sft/loss"]) < first + 10:
        assert child.poll() is None, run_of(run_id).reason
        time.sleep(0.02)
    kill(child)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    with transaction() as session:
        [row] = session.scalars(select(SettingChange).where(SettingChange.run_id == run_id)).all()
    assert (row.name, row.after) == ("sft.learning_rate", 0.001)
    assert row.step is not None
    assert 1 <= row.step <= first
    whole = make_run(**FLAT)
    change(whole, "sft.learning_rate", 1.0, 0.001, row.step)
    assert train(whole).status is RunStatus.COMPLETED
    last = ("sft", FLAT["sft"]["steps"])
    assert weights_of(checkpoints_of(run_id)[last]) == weights_of(checkpoints_of(whole)[last])
    rates = points_of(run_id)["sft/learning_rate"]
    assert rates[55] == points_of(whole)["sft/learning_rate"][55]
    assert all((rate or 0) <= 0.001 for step, rate in rates.items() if step >= row.step)


def test_a_warm_up_scans_its_alarms_as_they_are_set_meanwhile(installation: None) -> None:
    run_id = make_run(**FLAT, alarms={"warm_up_flat": "pause"})
    change(run_id, "alarms.warm_up_flat", "pause", "off")
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert alarms_of(run_id) == []
    with transaction() as session:
        [row] = session.scalars(select(SettingChange).where(SettingChange.run_id == run_id)).all()
    assert row.step == 0


def test_a_crash_continues_automatically_once_there_is_a_newer_state(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is tried again where the process ends badly; at the same place twice, it is the run's own end."""
    run_id = new_run(grpo={"steps": 6}, heldout={"every": 6})
    finish = trl_grpo._Bridge._step
    crashes = {1, 3}

    def crashing(bridge: Any, step: int, *arguments: Any) -> Any:
        if step in crashes:
            raise RuntimeError(f"the driver fell over at step {step}")
        return finish(bridge, step, *arguments)

    monkeypatch.setattr(trl_grpo._Bridge, "_step", crashing)
    assert train(run_id).status is RunStatus.FAILED, "nothing was saved yet: it would do the same again"
    crashes.remove(1)
    take_up_again(run_id)
    with pytest.raises(RuntimeError, match="fell over at step 3"):
        train(run_id)
    assert run_of(run_id).status is RunStatus.RUNNING
    assert "continues from its last saved state" in log_of(run_id)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.FAILED
    assert "fell over at step 3" in (run_of(run_id).reason or "")
    crashes.clear()
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert sorted(points_of(run_id)["reward"]) == list(range(1, 7))
