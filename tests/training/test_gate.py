"""The gate before GRPO: what closes it, and what is advised."""

from typing import Any

import pytest

from backend.checkpoints.tables import Checkpoint
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.warm_up import GateChoice
from workers.training.sft import attempts_of, gate_advice, gate_problems


def reached(*, format: float = 1.0, success: float = 0.5, reward: float | None = 0.7) -> Checkpoint:
    heldout: dict[str, Any] = {"format": format, "success": {"mean": success, "low": 0, "high": 1, "count": 40}}
    return Checkpoint(stage="sft", step=10, heldout=heldout, heldout_reward=reward)


def test_what_is_reached_opens_it() -> None:
    gate = GateChoice(minimum_format=0.9, minimum_success=0.5, minimum_reward=0.7)
    assert gate_problems(gate, reached()) == []


def test_a_form_that_is_not_understood_asks_for_more_warm_up_or_another_seed() -> None:
    gate, row = GateChoice(), reached(format=0.3)
    assert gate_problems(gate, row) == ["only 30% of replies could be parsed (required: 50%)"]
    assert "another seed" in gate_advice(gate, row)
    assert "gate.retries" in gate_advice(gate, row)
    assert "gate.retries" not in gate_advice(GateChoice(retries=1), row)


def test_play_that_never_succeeds_asks_for_an_easier_level_or_better_play() -> None:
    gate, row = GateChoice(minimum_success=0.1), reached(success=0.0)
    assert gate_problems(gate, row) == ["no held-out task succeeds (required: 10.0%)"]
    assert "easier level" in gate_advice(gate, row)


@pytest.mark.parametrize("success", [0.0, 0.01])
def test_a_warm_up_that_hardly_ever_succeeds_closes_it_by_default(success: float) -> None:
    row = reached(success=success)
    assert len(gate_problems(GateChoice(), row)) == 1
    assert "gate.minimum_success to 0" in gate_advice(GateChoice(), row)
    assert gate_problems(GateChoice(minimum_success=0), row) == []


def test_a_success_that_is_short_of_a_higher_aim_asks_for_more_warm_up() -> None:
    gate, row = GateChoice(minimum_success=0.5), reached(success=0.3)
    assert gate_problems(gate, row) == ["30.0% of held-out tasks succeed (required: 50.0%)"]
    assert gate_advice(gate, row).startswith("Warm up longer")


def test_a_heldout_evaluation_in_which_all_failed_reaches_nothing() -> None:
    row = reached(reward=None)
    row.heldout = {"format": 0.0, "success": None}
    assert len(gate_problems(GateChoice(minimum_success=0.1, minimum_reward=0.1), row)) == 3


def test_further_attempts_are_longer_with_other_seeds_and_count_on() -> None:
    configuration = TrainingConfiguration.model_validate(
        {"seed": 3, "sft": {"steps": 100}, "gate": {"retries": 2, "lengthen": 1.5}}
    )
    attempts = attempts_of(configuration)
    assert [(each.number, each.before, each.steps, each.last) for each in attempts] == [
        (1, 0, 100, 100),
        (2, 100, 150, 250),
        (3, 250, 225, 475),
    ]
    assert attempts[0].seed == 3
    assert len({each.seed for each in attempts}) == 3


@pytest.mark.parametrize("choices", [{"recipe": "sft", "gate": {"retries": 3}}, {}])
def test_without_a_gate_behind_it_or_further_tries_there_is_one_attempt(choices: dict[str, Any]) -> None:
    assert len(attempts_of(TrainingConfiguration.model_validate(choices))) == 1
