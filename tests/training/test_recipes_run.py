"""Whole runs of the recipes that start from a model which was trained before. They share its warm-up."""

import math
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunStatus
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run
from tests.training.conftest import (
    checkpoints_of,
    counts_of,
    make_run,
    points_of,
    run_of,
    take_up_again,
    weights_of,
)
from tests.training.test_run import stop_requested_at_step
from workers.training.rejection import KEPT
from workers.training.run import train
from workers.training.teacher import TEACHER_KL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

ROUNDS: dict[str, Any] = {
    "recipe": "rejection_sampling",
    "rejection": {"rounds": 2, "tasks": 8, "samples": 4, "keep": 2, "epochs": 4, "batch": 8, "minimum_reward": -9},
}


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All tests share the warmed-up checkpoint and the rounds."""


@pytest.fixture(scope="module")
def warmed_up_run(installation: None) -> Run:
    run_id = make_run(recipe="sft", sft={"steps": 40, "examine_every": 20, "learning_rate": 4e-3})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_of(run_id)


@pytest.fixture(scope="module")
def start(warmed_up_run: Run) -> dict[str, Any]:
    return {"source": "checkpoint", "checkpoint": checkpoints_of(warmed_up_run.id)["sft", 40].id}


@pytest.fixture(scope="module")
def rounds(start: dict[str, Any]) -> Run:
    run_id = make_run(model=start, **ROUNDS)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_of(run_id)


def test_rounds_keep_the_best_of_each_task_and_learn_from_them(rounds: Run) -> None:
    curves, told = points_of(rounds.id), rounds.summary["rounds"]
    assert list(checkpoints_of(rounds.id)) == [("untrained", 0), ("round", 1), ("round", 2)]
    assert counts_of(rounds.id) == {
        **{(Phase.TRAIN, number): 32 for number in (1, 2)},
        **{(Phase.HELDOUT, number): 9 for number in (0, 1, 2)},
    }
    assert [row["round"] for row in told] == [1, 2]
    for row in told:
        assert 0 < row["solved"] <= row["kept"] <= 2 * row["solved"]
        assert curves["rounds/kept"][row["round"]] == pytest.approx(row["kept"] / 32)
        assert row["heldout"] == curves["heldout/reward"][row["round"]]
    assert curves["sft/loss"]
    with transaction() as session:
        played = select(Group.ordinal, Rollout.reward, Rollout.metrics).join(Group, Group.id == Rollout.group_id)
        of_round = (Rollout.run_id == rounds.id, Rollout.training_step == 1, Rollout.phase == Phase.TRAIN)
        rows = session.execute(played.where(*of_round)).all()
    kept = {row.ordinal: row.reward for row in rows if KEPT in row.metrics}
    assert sum(KEPT in row.metrics for row in rows) == told[0]["kept"]
    for ordinal in kept:
        own = [row for row in rows if row.ordinal == ordinal]
        assert max(row.reward for row in own) == max(row.reward for row in own if KEPT in row.metrics)


def test_a_run_stopped_in_a_round_continues_to_the_same_weights(start: dict[str, Any], rounds: Run) -> None:
    cut = make_run(model=start, **ROUNDS)
    with stop_requested_at_step(cut, 2):
        assert train(cut).status is RunStatus.STOPPED
    assert list(checkpoints_of(cut)) == [("untrained", 0), ("round", 1)]
    take_up_again(cut)
    assert train(cut).status is RunStatus.COMPLETED, run_of(cut).reason
    assert run_of(cut).summary["rounds"] == rounds.summary["rounds"]
    assert weights_of(checkpoints_of(cut)["round", 2]) == weights_of(checkpoints_of(rounds.id)["round", 2])


def test_a_round_that_keeps_nothing_fails_with_advice(start: dict[str, Any]) -> None:
    few = {"rounds": 1, "tasks": 2, "samples": 2, "minimum_reward": 99}
    run_id = make_run(model=start, recipe="rejection_sampling", rejection=few, heldout={"tasks": 3})
    assert train(run_id).status is RunStatus.FAILED
    assert "Lower rejection.minimum_reward" in (run_of(run_id).reason or "")


def test_dpo_learns_to_prefer_the_better_episodes_of_the_rounds(start: dict[str, Any], rounds: Run) -> None:
    preferences = {"runs": [rounds.id], "epochs": 4, "batch": 4, "fewest": 4, "margin": 0.01, "learning_rate": 5e-4}
    run_id = make_run(model=start, recipe="dpo", preferences=preferences, heldout={"every": 8})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    curves, told = points_of(run_id), run_of(run_id).summary["pairs"]
    steps = sorted(curves["loss"])
    assert steps[-1] == math.ceil(told["pairs"] * 4 / 4)
    assert curves["loss"][1] == pytest.approx(math.log(2), abs=1e-4)
    assert (curves["loss"][steps[-1]] or 1) < 0.6
    assert list(checkpoints_of(run_id))[-1] == ("dpo", steps[-1])
    assert curves["heldout/reward"].keys() == {0, *range(8, steps[-1], 8), steps[-1]}


def test_a_student_approaches_the_checkpoint_that_teaches_it(warmed_up_run: Run, start: dict[str, Any]) -> None:
    """The student is the teacher halfway through its warm-up."""
    student = {"source": "checkpoint", "checkpoint": checkpoints_of(warmed_up_run.id)["sft", 20].id}
    teacher = {"teacher": "checkpoint", "checkpoint": start["checkpoint"]}
    grpo = {"steps": 8, "learning_rate": 1e-3, "max_grad_norm": 1.0}
    run_id = make_run(model=student, recipe="distillation", distillation=teacher, grpo=grpo, heldout={"every": 8})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    gaps = points_of(run_id)[TEACHER_KL]
    assert sorted(gaps) == list(range(1, 9))
    assert sum(gaps[step] or 0 for step in (6, 7, 8)) < sum(gaps[step] or 0 for step in (1, 2, 3)), gaps
