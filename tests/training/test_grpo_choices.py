"""GRPO's settings: contradictions are refused with a message, the rest is resolved."""

from typing import Any

import pytest
from pydantic import ValidationError

from backend.domain.training.grpo import GrpoChoice


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"loss_type": "luspo", "importance_level": "token"}, "luspo needs sequence-level ratios"),
        ({"importance_level": "sequence"}, "needs a loss that averages by episode"),
        ({"loss_type": "vespo", "importance_level": "sequence"}, "vespo does not"),
        ({"loss_type": "cispo", "epsilon_high": 0.28}, "epsilon_high is the maximum ratio"),
        ({"credit": "turn", "loss_type": "luspo"}, "credit by turn needs token-level ratios"),
        ({"credit": "turn", "loss_type": "vespo"}, "credit by turn needs token-level ratios"),
        ({"credit": "turn", "loss_type": "grpo", "importance_level": "sequence"}, "credit by turn"),
        ({"credit": "turn", "aggregation": "normalize_then_sum"}, "set aggregation to sum_then_normalize"),
        ({"staleness": 1, "replace_uniform": 2}, "set staleness or replace_uniform to 0"),
        ({"micro_batches": 7}, "cannot be divided into 7 micro-batches"),
        ({"levels": [0.0]}, "at least one level"),
        ({"loss_type": "ppo"}, "Input should be"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_message(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        GrpoChoice.model_validate(choices)


def test_auto_takes_the_level_that_the_loss_was_made_for() -> None:
    assert GrpoChoice().ratio_level == "token"
    assert GrpoChoice(loss_type="luspo").ratio_level == "sequence"
    assert GrpoChoice(loss_type="grpo", importance_level="sequence").ratio_level == "sequence"


def test_the_ratios_limit_of_cispo_is_the_ratio_itself() -> None:
    assert GrpoChoice().ratio_ceiling is None
    assert GrpoChoice(epsilon_high=0.28).ratio_ceiling == 0.28
    assert GrpoChoice(loss_type="cispo").ratio_ceiling == 5.0


def test_the_temperature_goes_in_a_straight_line() -> None:
    falling = GrpoChoice(steps=5, temperature=1.5, temperature_end=0.5)
    assert [falling.temperature_at(step) for step in range(1, 6)] == [1.5, 1.25, 1.0, 0.75, 0.5]
    assert GrpoChoice(steps=5, temperature=1.5).temperature_at(5) == 1.5
    assert GrpoChoice(steps=1, temperature=1.5, temperature_end=0.5).temperature_at(1) == 1.5


def test_choices_of_older_runs_still_load() -> None:
    stored = {"steps": 10, "tasks_per_step": 4, "group_size": 4, "loss_type": "dr_grpo", "temperature": 0.9}
    assert GrpoChoice.model_validate(stored).updates == 1
