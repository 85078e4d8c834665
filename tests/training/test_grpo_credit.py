"""Credit by turn reaches the loss: tokens of different turns get different advantages; with one nothing changes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.game import CHOICE, COLUMNS, Outcome
from workers.training.trl_grpo import GrpoTrainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

BY_TURN = CHOICE.model_copy(update={"steps": 1, "credit": "turn"})


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The input of the loss."""
    found: list[dict[str, Any]] = []
    honest = GrpoTrainer._compute_loss

    def keep(self: Any, model: Any, inputs: dict[str, Any]) -> Any:
        found.append(inputs)
        return honest(self, model, inputs)

    monkeypatch.setattr(GrpoTrainer, "_compute_loss", keep)
    return found


def test_tokens_of_two_turns_get_the_advantages_of_their_turns(tmp_path: Path, given: list[dict[str, Any]]) -> None:
    rollouts = Outcome(tmp_path, choice=BY_TURN).steps[0].rollouts
    brought = torch.tensor(
        [[sum(c.weight * step.rewards[c.name] for c in COLUMNS) for step in rollout.steps] for rollout in rollouts]
    )
    to_go = torch.stack([brought.sum(1), brought[:, 1]], 1).view(3, 4, 2)
    by_turn = (to_go - to_go.mean(1, keepdim=True)).view(12, 2)
    for rollout, by_hand in zip(rollouts, by_turn.tolist(), strict=True):
        assert rollout.turn_advantages == pytest.approx(by_hand, abs=1e-5)
        assert rollout.advantage == pytest.approx(by_hand[0], abs=1e-5)

    wanted = sorted(_spread_out(rollout.completion_mask or [], rollout.turn_advantages or []) for rollout in rollouts)
    (inputs,) = given
    lengths = inputs["completion_mask"].sum(1).tolist()
    rows = [row[:length] for row, length in zip(inputs["advantages"].tolist(), lengths, strict=True)]
    for row, wanted_row in zip(sorted(rows), wanted, strict=True):
        assert row == pytest.approx(wanted_row, abs=1e-6)
    assert any(len({abs(value) for value in row} - {0.0}) > 1 for row in rows)


def _spread_out(mask: list[int], advantages: list[float]) -> list[float]:
    turn, row = -1, []
    for place, counts in enumerate(mask):
        turn += bool(counts) and (place == 0 or not mask[place - 1])
        row.append(advantages[turn] if counts else 0.0)
    return row


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_with_one_turn_both_credits_are_the_same(tmp_path: Path, scale: str) -> None:
    choice = BY_TURN.model_copy(update={"scale_rewards": scale})
    by_turn = Outcome(tmp_path / "turn", choice=choice, turns=1)
    by_episode = Outcome(tmp_path / "episode", choice=choice.model_copy(update={"credit": "episode"}), turns=1)
    for one, other in zip(by_turn.steps[0].rollouts, by_episode.steps[0].rollouts, strict=True):
        assert one.turn_advantages == pytest.approx([other.advantage], abs=1e-5)
    assert by_turn.steps[0].figures["grad_norm"] == pytest.approx(by_episode.steps[0].figures["grad_norm"], rel=1e-4)


def test_with_two_turns_they_differ(tmp_path: Path) -> None:
    by_turn = Outcome(tmp_path / "turn", choice=BY_TURN)
    by_episode = Outcome(tmp_path / "episode", choice=BY_TURN.model_copy(update={"credit": "episode"}))
    assert by_turn.steps[0].figures["grad_norm"] != pytest.approx(by_episode.steps[0].figures["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "bnpo", "cispo", "sapo"])
def test_losses_of_tokens_take_it_in_parts_and_with_several_updates(tmp_path: Path, loss: str) -> None:
    changes = {"loss_type": loss, "micro_batches": 2, "updates": 2}
    outcome = Outcome(tmp_path, choice=BY_TURN.model_copy(update=changes))
    assert outcome.steps[0].figures["grad_norm"] > 0


def test_a_masked_rollout_gets_nothing(tmp_path: Path) -> None:
    outcome = Outcome(tmp_path, choice=BY_TURN, masked=lambda _: {2})
    rollouts = outcome.steps[0].rollouts
    assert rollouts[2].turn_advantages is None
    firsts = [rollouts[place].turn_advantages[0] for place in (0, 1, 3)]  # type: ignore[index]
    assert sum(firsts) == pytest.approx(0.0, abs=1e-5)
