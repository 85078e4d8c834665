"""An episode is learned at the positions at which it was sampled, whatever other prompts are in the batch."""

from pathlib import Path

import pytest

from tests.training.game import CHOICE, OPENING, Outcome, make_tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_short_prompts_with_long_ones_are_as_likely_as_when_they_were_sampled(tmp_path: Path, beta: float) -> None:
    """TRL pads the short ones on the left; learned positions that count the padding were off by its length."""
    start = tmp_path / "start"
    for part in make_tiny():
        part.save_pretrained(start)
    choice = CHOICE.model_copy(update={"steps": 2, "beta": beta})
    openings = (OPENING, OPENING * 2, f"{OPENING} Quickly!")
    outcome = Outcome(tmp_path / "run", choice=choice, openings=openings, start=start)
    lengths = {len(rollout.prompt_token_ids or ()) for rollout in outcome.steps[0].rollouts}
    assert len(lengths) == 3
    for step in outcome.steps:
        assert step.figures["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
        assert step.figures["ratio/max"] == pytest.approx(1.0, abs=1e-3)
    if beta:
        assert outcome.steps[0].figures.get("divergence") == pytest.approx(0.0, abs=1e-6)


def test_prompts_of_different_lengths_may_fill_the_context_together(tmp_path: Path) -> None:
    """The longest prompt and the longest reply are of two episodes: together they need more places than there are."""
    openings = (OPENING, OPENING * 5)
    outcome = Outcome(tmp_path, choice=CHOICE.model_copy(update={"steps": 1}), openings=openings, turns=6)
    rollouts = outcome.steps[0].rollouts
    whole = max(len(each.prompt_token_ids or ()) + len(each.completion_token_ids or ()) for each in rollouts)
    apart = max(len(each.prompt_token_ids or ()) for each in rollouts)
    apart += max(len(each.completion_token_ids or ()) for each in rollouts)
    assert whole <= 96 < apart
