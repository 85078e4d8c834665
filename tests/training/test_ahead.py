"""Sampling ahead: no episode is older than allowed, weights correct for its age, and a resumed run is the same run."""

import math
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.domain.rollouts.rollout import Rollout
from tests.models.adapters import make_adapter, make_base
from tests.training.game import CHOICE, Outcome, make_tiny
from workers.training.ahead import (
    PENDING,
    POLICY_VERSION,
    SampleAhead,
    SampleOrder,
    load_trained,
    save_trained,
    truncated_weights,
)
from workers.training.examples import BrokenStep
from workers.training.grpo_batch import GrpoControls, GrpoStep
from workers.training.trl_grpo import GrpoTrainer

pytestmark = pytest.mark.filterwarnings("default")

AHEAD = CHOICE.model_copy(update={"staleness": 1, "steps": 6, "learning_rate": 5e-3})


def versions_of(step: GrpoStep) -> set[float]:
    return {rollout.metrics[POLICY_VERSION] for rollout in step.rollouts}


def test_a_weight_is_the_ratio_up_to_its_limit_and_1_elsewhere() -> None:
    now = torch.tensor([[0.5, 0.2, 0.9, 0.4]]).log().requires_grad_()
    then = torch.tensor([[0.25, 0.4, 0.1, 0.4]]).log()
    weights = truncated_weights(now, then, torch.tensor([[1, 1, 1, 0]]), limit=3.0)
    assert weights.tolist() == [pytest.approx([2.0, 0.5, 3.0, 1.0])]
    assert not weights.requires_grad
    assert truncated_weights(then, then, torch.ones(1, 4), limit=2.0).tolist() == [[1.0] * 4]


@pytest.mark.parametrize("staleness", [1, 2, 8])
def test_each_batch_has_the_policy_of_its_age_and_none_is_older(tmp_path: Path, staleness: int) -> None:
    model, _ = make_tiny()
    choice = CHOICE.model_copy(update={"steps": 6, "staleness": staleness})
    played: list[tuple[int, int]] = []

    def play(order: SampleOrder, weights: Path) -> list[Rollout]:
        assert weights.exists()
        played.append((order.step, order.version))
        return []

    with SampleAhead(choice=choice, folder=tmp_path, plan=lambda _: [], play=play) as ahead:
        for step in range(1, 7):
            assert ahead.order(step, model, lambda each: each / 10) == step / 10
            ahead.take(step)
            assert ahead.figures()["staleness"] == min(step - 1, staleness)
    assert played == [(step, max(0, step - 1 - staleness)) for step in range(1, 7)]
    assert list(tmp_path.glob("*.safetensors")) == []


def test_a_batch_that_is_too_old_is_refused(tmp_path: Path) -> None:
    model, _ = make_tiny()
    with SampleAhead(choice=AHEAD, folder=tmp_path, plan=lambda _: [], play=lambda *_: []) as ahead:
        ahead.order(1, model, lambda _: 1.0)
        ahead._batches[4] = ahead._batches.pop(2)
        with pytest.raises(BrokenStep, match="episodes are 3 steps old, at most 1 allowed"):
            ahead.take(4)


def test_a_failure_is_raised_at_the_step_that_needs_the_batch(tmp_path: Path) -> None:
    model, _ = make_tiny()

    def play(order: SampleOrder, _: Path) -> list[Rollout]:
        if order.step == 2:
            raise RuntimeError("the sampler is gone")
        return []

    with SampleAhead(choice=AHEAD, folder=tmp_path, plan=lambda _: [], play=play) as ahead:
        ahead.order(1, model, lambda _: 1.0)
        assert ahead.take(1) == []
        ahead.order(2, model, lambda _: 1.0)
        with pytest.raises(RuntimeError, match="the sampler is gone"):
            ahead.take(2)


def test_overlap_is_the_share_of_learning_during_which_something_is_sampled(tmp_path: Path) -> None:
    model, _ = make_tiny()
    may_end = threading.Event()

    def play(order: SampleOrder, _: Path) -> list[Rollout]:
        if order.step == 2:
            may_end.wait(10)
        return []

    with SampleAhead(choice=AHEAD, folder=tmp_path, plan=lambda _: [], play=play) as ahead:
        ahead.order(1, model, lambda _: 1.0)
        ahead.take(1)
        time.sleep(0.1)
        assert ahead.figures()["ahead/overlap"] == pytest.approx(1.0, abs=0.2)
        may_end.set()
        ahead.order(2, model, lambda _: 1.0)
        ahead.take(2)
        time.sleep(0.1)
        assert ahead.figures()["ahead/overlap"] < 0.5


def test_trained_weights_are_the_same_on_the_other_side(tmp_path: Path) -> None:
    one, other = make_tiny()[0], make_tiny()[0]
    with torch.no_grad():
        for parameter in one.parameters():
            parameter += 0.1
    save_trained(one, tmp_path / "weights.safetensors")
    load_trained(other, tmp_path / "weights.safetensors")
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.slow
def test_training_is_one_step_behind_and_a_stopped_run_continues_bit_by_bit(tmp_path: Path) -> None:
    whole = Outcome(tmp_path / "whole", choice=AHEAD)
    assert [versions_of(step) for step in whole.steps] == [{0.0}, {0.0}, {1.0}, {2.0}, {3.0}, {4.0}]
    assert [step.figures["staleness"] for step in whole.steps] == [0, 1, 1, 1, 1, 1]
    ratios = [abs(step.figures["ratio/max"] - 1) for step in whole.steps]
    assert ratios[0] < 1e-3 < min(ratios[1:])

    Outcome(tmp_path / "cut", choice=AHEAD, stop_after=3)
    assert (tmp_path / "cut" / "checkpoint-3" / PENDING).exists()
    resumed = Outcome(tmp_path / "cut", choice=AHEAD)
    assert [step.step for step in resumed.steps] == [4, 5, 6]
    assert [(order.step, order.version) for order in resumed.orders] == [(4, 2), (5, 3), (6, 4)]
    assert torch.equal(resumed.weights, whole.weights)


@pytest.mark.slow
def test_of_an_adapter_only_its_own_weights_travel(tmp_path: Path) -> None:
    start = make_adapter(tmp_path / "start", make_base(tmp_path / "base", dtype=torch.float32))
    outcome = Outcome(tmp_path / "run", choice=AHEAD.model_copy(update={"steps": 3}), start=start)
    assert [versions_of(step) for step in outcome.steps] == [{0.0}, {0.0}, {1.0}]
    assert outcome.steps[0].figures["ratio/max"] == pytest.approx(1.0, abs=1e-3)
    save_trained(outcome.model, tmp_path / "trained.safetensors")
    assert all("lora" in name for name in load_file(tmp_path / "trained.safetensors"))


@pytest.mark.slow
def test_a_policy_that_does_not_move_learns_what_it_learns_without_sampling_ahead(tmp_path: Path) -> None:
    """With equal policies every weight is 1, and the gradients are those of taking turns."""
    still = GrpoControls(learning_rate_factor=0.0)
    ahead, turns = (
        Outcome(tmp_path / str(staleness), choice=AHEAD.model_copy(update={"staleness": staleness}), controls=still)
        for staleness in (2, 0)
    )
    for one, other in zip(ahead.steps, turns.steps, strict=True):
        assert one.figures["ratio/max"] == pytest.approx(1.0, abs=1e-4)
        assert one.figures["ratio/truncated"] == 0.0
        assert one.figures["grad_norm"] == pytest.approx(other.figures["grad_norm"], rel=1e-4)
        assert "staleness" not in other.figures


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_loss_is_that_of_a_computation_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batches: int
) -> None:
    """With one update, a token contributes −w A, and `dapo` averages over all tokens of the step."""
    read: list[list[torch.Tensor]] = []
    weight = GrpoTrainer._weight

    def watched(
        self: GrpoTrainer, scored: dict[str, torch.Tensor], now: torch.Tensor, mask: torch.Tensor, limit: float
    ) -> float:
        read.append([scored["advantages"], now.detach(), scored["sampling_per_token_logps"], mask])
        return weight(self, scored, now, mask, limit)

    monkeypatch.setattr(GrpoTrainer, "_weight", watched)
    choice = AHEAD.model_copy(update={"steps": 2, "importance_limit": 1.1, "micro_batches": micro_batches})
    step = Outcome(tmp_path, choice=choice).steps[1]
    total = count = limited = 0.0
    for advantages, now, then, mask in read[-micro_batches:]:
        for row, advantage in enumerate(advantages.tolist()):
            for p, q, counts in zip(now[row].tolist(), then[row].tolist(), mask[row].tolist(), strict=True):
                total -= counts * min(math.exp(p - q), 1.1) * advantage
                limited += counts * (math.exp(p - q) >= 1.1)
                count += counts
    assert step.figures["loss"] == pytest.approx(total / count, rel=1e-3, abs=1e-6)
    assert step.figures["ratio/truncated"] == pytest.approx(limited / count)
    assert limited > 0


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"updates": 2}, {"loss_type": "vespo"}])
def test_other_losses_and_several_updates_are_weighted_too(tmp_path: Path, changes: dict[str, object]) -> None:
    figures = []
    for limit in (100.0, 1.0):
        choice = AHEAD.model_copy(update={"steps": 2, "importance_limit": limit, "max_grad_norm": 1e6, **changes})
        figures.append(Outcome(tmp_path / str(limit), choice=choice).steps[1].figures)
    free, limited = figures
    assert free["ratio/truncated"] == 0.0
    assert limited["ratio/truncated"] > 0.2
    assert free["grad_norm"] != pytest.approx(limited["grad_norm"], rel=1e-3)


@pytest.mark.slow
def test_a_changed_temperature_applies_to_batches_that_are_not_ordered_yet(tmp_path: Path) -> None:
    def cool(outcome: Outcome, step: GrpoStep) -> None:
        outcome.controls.temperature = 0.5 if step.step == 2 else None

    outcome = Outcome(tmp_path, choice=AHEAD, after_step=cool)
    assert [step.figures["temperature"] for step in outcome.steps] == [1.0, 1.0, 1.0, 0.5, 1.0, 1.0]
