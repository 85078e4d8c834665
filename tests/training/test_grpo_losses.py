"""All of TRL's losses take real steps: weights move, and losses that should differ do."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.training.grpo import GrpoChoice
from tests.training.game import CHOICE, Outcome
from workers.training.checkpoints import newest_complete, reached_step

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

LOSSES = ["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
TWICE = {"steps": 1, "updates": 2, "learning_rate": 0.02, "epsilon": 0.02}


def chosen(**changes: Any) -> GrpoChoice:
    return GrpoChoice.model_validate(CHOICE.model_dump() | changes)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("once")
    return {loss: Outcome(folder / loss, choice=chosen(steps=1, loss_type=loss)) for loss in LOSSES}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("twice")
    return {loss: Outcome(folder / loss, choice=chosen(**TWICE, loss_type=loss)) for loss in LOSSES}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_moves_the_weights(once: dict[str, Outcome], twice: dict[str, Outcome], loss: str) -> None:
    for outcome in (once[loss], twice[loss]):
        step = outcome.steps[0]
        assert math.isfinite(step.figures["loss"])
        assert step.figures["grad_norm"] > 1e-6
        assert not torch.equal(outcome.weights, outcome.untrained)


def test_with_one_update_losses_differ_in_how_they_weigh_tokens_alone(once: dict[str, Outcome]) -> None:
    norms = {loss: outcome.steps[0].figures["grad_norm"] for loss, outcome in once.items()}
    tokens = sum(sum(rollout.completion_mask or []) for rollout in once["dapo"].steps[0].rollouts)
    assert norms["bnpo"] == pytest.approx(norms["dapo"], rel=1e-4)
    assert norms["cispo"] == pytest.approx(norms["dapo"], rel=1e-4)
    assert norms["vespo"] == pytest.approx(norms["dapo"], rel=1e-4)
    assert norms["sapo"] == pytest.approx(norms["grpo"], rel=1e-4)
    assert norms["dr_grpo"] == pytest.approx(norms["dapo"] * tokens / (12 * 256), rel=1e-4)
    assert norms["luspo"] == pytest.approx(norms["dapo"] * tokens / 12, rel=1e-4)
    assert norms["grpo"] != pytest.approx(norms["dapo"], rel=1e-3)


def test_with_more_updates_losses_differ_in_what_they_do_with_the_ratio(twice: dict[str, Outcome]) -> None:
    for one in ("dapo", "grpo", "cispo", "sapo", "luspo", "vespo"):
        for other in ("dapo", "grpo", "cispo", "sapo", "luspo", "vespo"):
            if one < other:
                assert not torch.allclose(twice[one].weights, twice[other].weights, atol=1e-5), (one, other)


def test_the_ratio_is_1_on_policy_and_moves_with_more_updates(
    once: dict[str, Outcome], twice: dict[str, Outcome]
) -> None:
    on_policy, moved = once["dapo"].steps[0].figures, twice["dapo"].steps[0].figures
    assert on_policy["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
    assert on_policy["ratio/max"] == pytest.approx(1.0, abs=1e-3)
    assert (on_policy["ratio/low_clip"], on_policy["ratio/high_clip"]) == (0.0, 0.0)
    assert moved["ratio/max"] > 1.02
    assert moved["ratio/low_clip"] + moved["ratio/high_clip"] > 0
    assert twice["cispo"].steps[0].figures.get("ratio/low_clip") is None
    assert twice["sapo"].steps[0].figures.get("ratio/high_clip") is None


def test_a_wider_limit_cuts_fewer_tokens(tmp_path: Path, twice: dict[str, Outcome]) -> None:
    wide = Outcome(tmp_path, choice=chosen(**{**TWICE, "epsilon": 0.5}, epsilon_high=5.0)).steps[0].figures
    narrow = twice["dapo"].steps[0].figures
    assert wide["ratio/low_clip"] + wide["ratio/high_clip"] < narrow["ratio/low_clip"] + narrow["ratio/high_clip"]


def test_ratios_of_whole_episodes_learn_otherwise(tmp_path: Path, twice: dict[str, Outcome]) -> None:
    gspo = Outcome(tmp_path, choice=chosen(**TWICE, loss_type="grpo", importance_level="sequence"))
    assert not torch.allclose(gspo.weights, twice["grpo"].weights, atol=1e-5)


def test_columns_compared_on_their_own_give_other_advantages(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, choice=chosen(steps=1, aggregation="normalize_then_sum"))
    rollouts = outcome.steps[0].rollouts
    columns = torch.tensor([[rollout.columns["fours"], rollout.columns["brevity"]] for rollout in rollouts])
    groups = columns.view(3, 4, 2)
    scaled = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    summed = (scaled.view(12, 2) * torch.tensor([1.0, 0.1])).sum(1)
    wanted = (summed - summed.mean()) / (summed.std() + 1e-4)
    assert [rollout.advantage for rollout in rollouts] == pytest.approx(wanted.tolist(), abs=1e-4)


def test_several_updates_are_one_step_and_continue_bit_by_bit(tmp_path: Path) -> None:
    choice = chosen(steps=3, updates=2, micro_batches=2)
    whole = Outcome(tmp_path / "whole", choice=choice)
    assert [step.step for step in whole.steps] == [1, 2, 3]
    stopped = Outcome(tmp_path / "cut", choice=choice, stop_after=1)
    newest = newest_complete(tmp_path / "cut")
    assert newest is not None
    assert newest.name == "checkpoint-2"
    assert reached_step(tmp_path / "cut", choice.updates) == 1
    resumed = Outcome(tmp_path / "cut", choice=choice)
    assert [step.step for step in stopped.steps + resumed.steps] == [1, 2, 3]
    assert torch.equal(resumed.weights, whole.weights)
