"""Whole runs of the recipes that start from a model which sometimes succeeds. They share its warm-up."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

ROUNDS: dict[str, Any] = {
    "recipe": "rejection_sampling",
    "rejection": {"rounds": 2, "tasks": 24, "samples": 6, "keep": 2, "batch": 8, "learning_rate": 2e-3},
    "heldout": {"tasks": 60},
}


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All tests share the warmed-up checkpoint and the rounds."""


@pytest.fixture(scope="module")
def start(installation: None) -> dict[str, Any]:
    """A model that sometimes wins."""
    run_id = make_run(recipe="sft", sft={"episodes": 200, "steps": 120, "learning_rate": 4e-3})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return {"source": "checkpoint", "checkpoint": checkpoints_of(run_id)["sft", 120].id}


@pytest.fixture(scope="module")
def rounds(start: dict[str, Any]) -> Run:
    run_id = make_run(model=start, **ROUNDS)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_of(run_id)


def test_rounds_keep_the_best_and_learn_from_them(rounds: Run) -> None:
    curves, told = points_of(rounds.id), rounds.summary["rounds"]
    assert list(checkpoints_of(rounds.id)) == [("untrained", 0), ("round", 1), ("round", 2)]
    assert counts_of(rounds.id) == {
        **{(Phase.TRAIN, number): 144 for number in (1, 2)},
        **{(Phase.HELDOUT, number): 60 for number in (0, 1, 2)},
    }
    assert [row["round"] for row in told] == [1, 2]
    for row in told:
        assert 0 < row["solved"] <= row["kept"] <= 2 * row["solved"]
        assert curves["rounds/kept"][row["round"]] == pytest.approx(row["kept"] / 144)
        assert row["heldout"] == curves["heldout/reward"][row["round"]]
    with transaction() as session:
        played = select(Group.ordinal, Rollout.columns, Rollout.metrics).join(Group, Group.id == Rollout.group_id)
        rows = session.execute(
            played.where(Rollout.run_id == rounds.id, Rollout.training_step == 1, Rollout.phase == Phase.TRAIN)
        ).all()
    kept = [row for row in rows if KEPT in row.metrics]
    assert len(kept) == told[0]["kept"]
    assert all(row.columns[0] == 1 for row in kept), "only wins"


def test_a_run_stopped_in_a_round_continues_to_the_same_weights(start: dict[str, Any], rounds: Run) -> None:
    cut = make_run(model=start, **ROUNDS)
    with stop_requested_at_step(cut, 2):
        assert train(cut).status is RunStatus.STOPPED
    assert ("round", 1) in checkpoints_of(cut)
    assert ("round", 2) not in checkpoints_of(cut)
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
    preferences = {
        "runs": [rounds.id],
        "epochs": 3,
        "batch": 8,
        "fewest": 8,
        "learning_rate": 5e-4,
        "where": "phase = train",
    }
    run_id = make_run(model=start, recipe="dpo", preferences=preferences, heldout={"every": 8, "tasks": 60})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    curves, told = points_of(run_id), run_of(run_id).summary["pairs"]
    steps = sorted(curves["loss"])
    assert steps[-1] == math.ceil(told["pairs"] * 3 / 8)
    assert curves["loss"][1] == pytest.approx(math.log(2), abs=1e-4)
    assert (curves["loss"][steps[-1]] or 1) < 0.6
    assert (curves["pairs/margin"][steps[-1]] or 0) > 0
    assert ("dpo", 8) in checkpoints_of(run_id)
    assert ("dpo", steps[-1]) in checkpoints_of(run_id)


def test_dpo_without_enough_pairs_fails_with_advice(start: dict[str, Any]) -> None:
    run_id = make_run(model=start, recipe="dpo", heldout={"tasks": 3}, preferences={"where": "reward > 99"})
    assert train(run_id).status is RunStatus.FAILED
    assert "at least 32 are needed" in (run_of(run_id).reason or "")
