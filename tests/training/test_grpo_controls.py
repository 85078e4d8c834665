"""What may change between steps: the rate's factor and the temperature; the schedule and the resume stay what they
were."""

from pathlib import Path

import pytest
import torch

from tests.models.adapters import make_adapter, make_base
from tests.training.game import CHOICE, Outcome, make_tiny
from workers.training.grpo_batch import GrpoControls, GrpoStep
from workers.training.hardware import Hardware

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def halve_after_two(outcome: Outcome, step: GrpoStep) -> None:
    if step.step == 2:
        outcome.controls.learning_rate_factor = 0.5


def test_the_rate_is_the_schedules_times_the_factor(tmp_path: Path) -> None:
    plain = Outcome(tmp_path / "plain")
    halved = Outcome(tmp_path / "halved", after_step=halve_after_two)
    planned = [step.figures["learning_rate"] for step in plain.steps]
    assert [step.figures["learning_rate"] for step in halved.steps] == pytest.approx(
        [planned[0], planned[1], planned[2] / 2, planned[3] / 2], rel=1e-12
    )
    assert [step.figures["lr_factor"] for step in halved.steps] == [1.0, 1.0, 0.5, 0.5]
    assert not torch.equal(plain.weights, halved.weights)


def test_a_factor_of_nothing_moves_nothing_and_the_schedule_continues(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    def rest_in_the_second(outcome: Outcome, step: GrpoStep) -> None:
        seen.append(outcome.weights)
        outcome.controls.learning_rate_factor = 0.0 if step.step == 1 else 1.0

    outcome = Outcome(tmp_path / "rest", after_step=rest_in_the_second)
    planned = [step.figures["learning_rate"] for step in Outcome(tmp_path / "plain").steps]
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert outcome.steps[2].figures["learning_rate"] == planned[2]


def test_a_run_whose_rate_was_lowered_continues_bit_by_bit(tmp_path: Path) -> None:
    whole = Outcome(tmp_path / "whole", after_step=halve_after_two)
    Outcome(tmp_path / "cut", after_step=halve_after_two, stop_after=3)
    resumed = Outcome(tmp_path / "cut", controls=GrpoControls(learning_rate_factor=0.5))
    assert [step.step for step in resumed.steps] == [4]
    assert torch.equal(resumed.weights, whole.weights)


def agrees(step: GrpoStep) -> bool:
    """Do the sampler and the loss use the same distribution?"""
    return abs(step.figures["ratio/mean"] - 1) < 1e-4 and abs(step.figures["ratio/max"] - 1) < 1e-3


def test_the_temperature_moves_in_a_straight_line_for_the_sampler_and_the_loss(tmp_path: Path) -> None:
    model, tokenizer = make_tiny()
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    choice = CHOICE.model_copy(update={"temperature": 1.6, "temperature_end": 0.4, "beta": 0.05})
    outcome = Outcome(tmp_path / "run", choice=choice, start=tmp_path / "start")
    assert [step.figures["temperature"] for step in outcome.steps] == pytest.approx([1.6, 1.2, 0.8, 0.4])
    assert all(agrees(step) for step in outcome.steps)
    still = GrpoControls(learning_rate_factor=0.0)
    unmoved = Outcome(tmp_path / "still", choice=choice, start=tmp_path / "start", controls=still)
    assert [step.figures.get("divergence") for step in unmoved.steps] == pytest.approx([0.0] * 4, abs=1e-6)


def test_the_temperature_moves_for_an_adapter_and_its_reference(tmp_path: Path) -> None:
    start = make_adapter(tmp_path / "start", make_base(tmp_path / "base", dtype=torch.float32))
    choice = CHOICE.model_copy(update={"steps": 2, "temperature": 1.6, "temperature_end": 0.8, "beta": 0.05})
    outcome = Outcome(tmp_path / "run", choice=choice, start=start)
    assert all(agrees(step) for step in outcome.steps)
    assert outcome.steps[0].figures.get("divergence") == pytest.approx(0.0, abs=1e-6)
    assert outcome.steps[1].figures.get("divergence") == pytest.approx(0.0, abs=1e-2)


def test_the_temperature_moves_where_products_are_bf16(tmp_path: Path) -> None:
    model, tokenizer = make_tiny()
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    choice = CHOICE.model_copy(update={"temperature": 1.6, "temperature_end": 0.4, "beta": 0.05})
    still = GrpoControls(learning_rate_factor=0.0)
    outcome = Outcome(
        tmp_path / "run", choice=choice, start=tmp_path / "start", controls=still, hardware=Hardware(is_bf16=True)
    )
    assert [step.figures["temperature"] for step in outcome.steps] == pytest.approx([1.6, 1.2, 0.8, 0.4])
    assert all(step.figures["ratio/mean"] == pytest.approx(1.0, abs=0.01) for step in outcome.steps)
    assert [step.figures.get("divergence") for step in outcome.steps] == pytest.approx([0.0] * 4, abs=1e-3)


def test_a_temperature_that_is_set_replaces_the_planned_one(tmp_path: Path) -> None:
    def cool(outcome: Outcome, step: GrpoStep) -> None:
        outcome.controls.temperature = 0.5 if step.step == 2 else None

    outcome = Outcome(tmp_path, after_step=cool)
    assert [step.figures["temperature"] for step in outcome.steps] == [1.0, 1.0, 0.5, 1.0]
    assert all(agrees(step) for step in outcome.steps)


def test_the_ratio_shows_when_the_sampler_has_another_temperature(tmp_path: Path) -> None:
    choice = CHOICE.model_copy(update={"temperature": 0.5, "steps": 1})
    assert agrees(Outcome(tmp_path / "told", choice=choice).steps[0])
    assert not agrees(Outcome(tmp_path / "untold", choice=choice, is_told=False).steps[0])
