"""Rollouts that must not be learned from: hacks are taken out of their groups, cut ones only out of the loss."""

from pathlib import Path

import pytest
import torch

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import RolloutStatus
from tests.training.game import CHOICE, Outcome
from workers.training.grpo_batch import MASKED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

ONE_STEP = CHOICE.model_copy(update={"steps": 1})


def test_a_masked_rollout_is_taken_out_of_its_groups_mean_and_spread(tmp_path: Path) -> None:
    choice = ONE_STEP.model_copy(update={"scale_rewards": "group"})
    outcome = Outcome(tmp_path, choice=choice, masked=lambda _: {1})
    group = outcome.steps[0].rollouts[:4]
    assert group[1].advantage is None
    assert group[1].metrics == {MASKED: 1.0}
    assert group[1].reward is not None
    rewards = torch.tensor([group[place].reward for place in (0, 2, 3)])
    wanted = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert [group[place].advantage for place in (0, 2, 3)] == pytest.approx(wanted.tolist(), abs=1e-4)


def test_a_masked_rollout_moves_no_weight(tmp_path: Path) -> None:
    def fail_it(rollouts: list[Rollout]) -> None:
        rollouts[5].status, rollouts[5].reward = RolloutStatus.FAILED, None

    masked = Outcome(tmp_path / "masked", choice=ONE_STEP, masked=lambda _: {5})
    failed = Outcome(tmp_path / "failed", choice=ONE_STEP, spoil=fail_it)
    plain = Outcome(tmp_path / "plain", choice=ONE_STEP)
    assert torch.allclose(masked.weights, failed.weights, atol=1e-7)
    assert not torch.allclose(masked.weights, plain.weights, atol=1e-7)


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_a_group_of_which_one_is_left_has_no_gradient(tmp_path: Path, scale: str) -> None:
    choice = ONE_STEP.model_copy(update={"scale_rewards": scale})
    outcome = Outcome(tmp_path, choice=choice, masked=lambda _: {0, 1, 3})
    left = outcome.steps[0].rollouts[2]
    assert left.advantage == pytest.approx(0.0, abs=1e-6)
    assert outcome.steps[0].figures["groups/no_variance"] >= 1 / 3


def test_a_step_of_hacks_alone_moves_nothing(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, choice=ONE_STEP, masked=lambda rollouts: set(range(len(rollouts))))
    assert outcome.steps[0].figures["grad_norm"] == 0.0
    assert torch.equal(outcome.weights, outcome.untrained)


def test_a_cut_rollout_is_silent_and_counts_in_its_groups_mean(tmp_path: Path) -> None:
    def cut(rollouts: list[Rollout]) -> None:
        for place, rollout in enumerate(rollouts):
            rollout.is_truncated = place != 6

    choice = ONE_STEP.model_copy(update={"mask_truncated": True})
    outcome = Outcome(tmp_path / "cut", choice=choice, spoil=cut)
    group = outcome.steps[0].rollouts[4:8]
    mean = sum(rollout.reward or 0.0 for rollout in group) / 4
    assert group[2].advantage == pytest.approx((group[2].reward or 0.0) - mean, abs=1e-5)
    assert outcome.steps[0].figures["grad_norm"] > 0

    def cut_all(rollouts: list[Rollout]) -> None:
        for rollout in rollouts:
            rollout.is_truncated = True

    silent = Outcome(tmp_path / "silent", choice=choice, spoil=cut_all)
    assert silent.steps[0].figures["grad_norm"] == 0.0
    heard = Outcome(tmp_path / "heard", choice=ONE_STEP, spoil=cut_all)
    assert heard.steps[0].figures["grad_norm"] > 0
