"""GRPO through TRL: it learns, its figures are ours, its traps spring, and a resumed run is the same run."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import RolloutStatus
from tests.training.game import CHOICE, Outcome, make_tiny
from workers.training import trl_grpo
from workers.training.checkpoints import newest_complete
from workers.training.examples import BrokenStep
from workers.training.grpo_batch import STEP_PARTS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_every_step_reports_what_was_played_with_advantages(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path)
    assert [step.step for step in outcome.steps] == [1, 2, 3, 4]
    for step in outcome.steps:
        assert math.isfinite(step.figures["loss"])
        assert step.figures["grad_norm"] > 0
        assert step.figures["entropy"] > 0
        assert len(step.rollouts) == 12
        for group in range(3):
            members = [rollout for rollout in step.rollouts if rollout.group == group]
            mean = sum(rollout.reward or 0 for rollout in members) / 4
            for rollout in members:
                assert rollout.advantage == pytest.approx((rollout.reward or 0) - mean, abs=1e-5)


def test_the_divergence_is_measured_where_beta_is_above_0_and_a_tiny_one_holds_nothing(tmp_path: Path) -> None:
    start = tmp_path / "start"
    for part in make_tiny():
        part.save_pretrained(start)
    free = Outcome(tmp_path / "free", start=start)
    assert [step.figures.get("divergence") for step in free.steps] == [None] * 4
    measured = Outcome(tmp_path / "measured", start=start, choice=CHOICE.model_copy(update={"beta": 1e-6}))
    divergences = [step.figures.get("divergence") or 0.0 for step in measured.steps]
    assert divergences[0] == pytest.approx(0.0, abs=1e-6)
    assert divergences[-1] > 1e-6
    assert torch.allclose(measured.weights, free.weights, atol=1e-4)


def test_the_time_of_a_step_is_known_in_parts(tmp_path: Path) -> None:
    for step in Outcome(tmp_path).steps:
        assert set(step.seconds) == {*STEP_PARTS, "idle", "step"}
        assert all(seconds > 0 for seconds in step.seconds.values())
        assert 0 < step.seconds["idle"] < step.seconds["step"]


def test_a_stopped_run_continues_bit_by_bit(tmp_path: Path) -> None:
    whole = Outcome(tmp_path / "whole")
    stopped = Outcome(tmp_path / "cut", stop_after=3)
    assert [step.step for step in stopped.steps] == [1, 2, 3]
    resumed = Outcome(tmp_path / "cut")
    assert [step.step for step in resumed.steps] == [4]
    assert torch.equal(resumed.weights, whole.weights)
    assert not torch.equal(stopped.weights, whole.weights)
    replayed = [rollout.completion_token_ids for rollout in resumed.steps[-1].rollouts]
    assert replayed == [rollout.completion_token_ids for rollout in whole.steps[-1].rollouts]


def test_a_state_that_was_cut_while_it_was_written_is_not_used(tmp_path: Path) -> None:
    whole = Outcome(tmp_path / "whole")
    Outcome(tmp_path / "cut", stop_after=3)
    newest = newest_complete(tmp_path / "cut")
    assert newest is not None
    assert newest.name == "checkpoint-3"
    (newest / "complete").unlink()
    (newest / "optimizer.pt").write_bytes(b"half")
    resumed = Outcome(tmp_path / "cut")
    assert [step.step for step in resumed.steps] == [3, 4]
    assert torch.equal(resumed.weights, whole.weights)


def test_a_failed_rollout_moves_nothing_and_keeps_out_of_its_groups_mean(tmp_path: Path) -> None:
    def fail_one(rollouts: list[Rollout]) -> None:
        rollouts[5].status, rollouts[5].reward = RolloutStatus.FAILED, None
        rollouts[5].completion_token_ids = None

    outcome = Outcome(tmp_path, choice=CHOICE.model_copy(update={"steps": 1}), spoil=fail_one)
    group = outcome.steps[0].rollouts[4:8]
    rewards = [rollout.reward for rollout in group if rollout.reward is not None]
    assert len(rewards) == 3
    assert group[1].advantage is None
    assert group[0].advantage == pytest.approx((group[0].reward or 0) - sum(rewards) / 3, abs=1e-5)


def test_a_misnamed_mask_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL takes any other key without a word and then learns the environment's tokens too."""
    honest = trl_grpo._Bridge.rollouts

    def misnamed(self: Any, prompts: Any, trainer: Any) -> dict[str, Any]:
        made = honest(self, prompts, trainer)
        made["loss_mask"] = made.pop("env_mask")
        return made

    monkeypatch.setattr(trl_grpo._Bridge, "rollouts", misnamed)
    with pytest.raises(BrokenStep, match="counted completions/mean_length"):
        Outcome(tmp_path)


def test_a_lost_reward_column_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(column: str, values: Any, **_: Any) -> list[float]:
        return [0.0] * len(values)

    monkeypatch.setattr(trl_grpo._Bridge, "values_of_column", staticmethod(nothing))
    with pytest.raises(BrokenStep, match="counted reward"):
        Outcome(tmp_path)


def test_a_missing_rollout_ends_the_run_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(BrokenStep, match=r"missing \[\(2, 3\)\]"):
        Outcome(tmp_path, spoil=lambda rollouts: rollouts.pop())


def test_it_learns(tmp_path: Path) -> None:
    choice = CHOICE.model_copy(update={"steps": 25, "learning_rate": 5e-3})
    outcome = Outcome(tmp_path, choice=choice)
    rewards = [sum(rollout.reward or 0 for rollout in step.rollouts) / 12 for step in outcome.steps]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1


def test_micro_batches_give_the_same_gradient(tmp_path: Path) -> None:
    one, three = (
        Outcome(tmp_path / str(parts), choice=CHOICE.model_copy(update={"steps": 1, "micro_batches": parts}))
        for parts in (1, 3)
    )
    assert three.steps[0].figures["grad_norm"] == pytest.approx(one.steps[0].figures["grad_norm"], rel=1e-3)


def test_the_divergence_is_measured_from_the_policy_before(tmp_path: Path) -> None:
    start = tmp_path / "start"
    model, tokenizer = make_tiny()
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    outcome = Outcome(tmp_path / "run", choice=CHOICE.model_copy(update={"beta": 0.05}), start=start)
    divergences = [step.figures.get("divergence") for step in outcome.steps]
    assert divergences[0] == pytest.approx(0.0, abs=1e-6)
    assert all(value is not None and value > 0 for value in divergences[1:])
