"""Groups without variance give place to fresh ones before the optimiser's step, and a resumed run does the same."""

from pathlib import Path

import pytest
import torch

from backend.domain.rollouts.rollout import Rollout
from tests.training.game import CHOICE, COLUMNS, Outcome
from workers.training.grpo_batch import REPLACED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

REPLACING = CHOICE.model_copy(update={"replace_uniform": 2})


def level_the_second(rollouts: list[Rollout]) -> None:
    """Group 1 has no variance; nor has the first that takes its place in step 3."""
    for rollout in rollouts:
        if rollout.group == 1 or (rollout.group == 4 and rollout.training_step == 3):
            rollout.columns = {"fours": 1.0, "brevity": 0.0}
            rollout.reward = COLUMNS[0].weight


def test_replaced_rollouts_are_handed_over_and_teach_nothing(tmp_path: Path) -> None:
    first, _, third, _ = Outcome(tmp_path, choice=REPLACING, spoil=level_the_second).steps
    learned, of_third = ([each for each in step.rollouts if REPLACED not in each.metrics] for step in (first, third))
    assert [rollout.group for rollout in learned] == [0] * 4 + [4] * 4 + [2] * 4
    replaced = [rollout for rollout in first.rollouts if REPLACED in rollout.metrics]
    assert [(rollout.group, rollout.advantage) for rollout in replaced] == [(1, None)] * 4
    assert first.figures["groups/no_variance"] == 0.0
    assert [rollout.group for rollout in of_third] == [0] * 4 + [7] * 4 + [2] * 4
    assert len(third.rollouts) == 20
    for group in (0, 4, 2):
        advantages = [rollout.advantage or 0.0 for rollout in learned if rollout.group == group]
        assert sum(advantages) == pytest.approx(0.0, abs=1e-5)
        assert any(advantages)


def test_a_run_that_replaces_continues_bit_by_bit(tmp_path: Path) -> None:
    whole = Outcome(tmp_path / "whole", choice=REPLACING, spoil=level_the_second)
    Outcome(tmp_path / "cut", choice=REPLACING, spoil=level_the_second, stop_after=2)
    resumed = Outcome(tmp_path / "cut", choice=REPLACING, spoil=level_the_second)
    assert [step.step for step in resumed.steps] == [3, 4]
    assert torch.equal(resumed.weights, whole.weights)
