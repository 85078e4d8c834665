"""A branch takes over what there is: the trainer's whole state, or a checkpoint's weights at their step."""

import uuid
from pathlib import Path

import pytest
import torch

from backend.core.artifacts import put_folder
from backend.core.session import transaction
from backend.domain.vocabulary import PolicyKind
from tests.factories import make_checkpoint, make_policy
from tests.training.game import CHOICE, COLUMNS, Game, make_tiny
from workers.training.assignment import BranchPoint
from workers.training.checkpoints import newest_complete, reached_step, take_over
from workers.training.grpo_batch import GrpoRun, GrpoStep
from workers.training.trl_grpo import train_grpo

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class Played:
    """The game's steps from wherever the folder's newest state is."""

    def __init__(self, folder: Path, *, save_every: int = 1) -> None:
        self.model, self.tokenizer = make_tiny()
        self.steps: list[GrpoStep] = []
        game = Game(self.model, self.tokenizer)
        train_grpo(
            GrpoRun(
                model=self.model,
                tokenizer=self.tokenizer,
                choice=CHOICE,
                columns=COLUMNS,
                seed=3,
                folder=folder,
                save_every=save_every,
                play=game.play,
                on_step=self.take,
            )
        )

    def take(self, step: GrpoStep) -> bool:
        self.steps.append(step)
        return True

    @property
    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def point_of(source: Path, step: int, weights: Path | None = None) -> BranchPoint:
    """The folder `source/grpo` of a source with saved states."""
    checkpoint_id = uuid.uuid4()
    if weights is not None:
        with transaction() as session:
            row = make_checkpoint(session, make_policy(session, kind=PolicyKind.LOCAL), stage="grpo", step=step)
            put_folder(weights, row.artifact)
            checkpoint_id = row.id
    return BranchPoint(uuid.uuid4(), step, checkpoint_id, checkpoint_id, source)


def test_with_the_whole_state_it_repeats_the_source_bit_by_bit(tmp_path: Path) -> None:
    whole = Played(tmp_path / "source" / "grpo")
    folder = tmp_path / "branch"
    taken = take_over(point_of(tmp_path / "source", 3), folder, CHOICE, save_every=1)
    assert taken is not None
    assert "whole state" in taken
    assert take_over(point_of(tmp_path / "source", 3), folder, CHOICE, save_every=1) is None, "once"
    branch = Played(folder)
    assert [step.step for step in branch.steps] == [4]
    assert torch.equal(branch.weights, whole.weights)


def test_batches_that_the_source_had_ordered_ahead_stay_there(tmp_path: Path) -> None:
    state = tmp_path / "source" / "grpo" / "checkpoint-3"
    state.mkdir(parents=True)
    for name in ("complete", "optimizer.pt", "ahead.json", "ahead-2.safetensors"):
        (state / name).touch()
    take_over(point_of(tmp_path / "source", 3), tmp_path / "branch", CHOICE, save_every=1)
    taken = {path.name for path in (tmp_path / "branch" / "checkpoint-3").iterdir()}
    assert taken == {"complete", "optimizer.pt"}


def test_with_the_weights_alone_steps_and_schedule_continue(installation: None, tmp_path: Path) -> None:
    whole = Played(tmp_path / "elsewhere" / "grpo")
    saved = tmp_path / "elsewhere" / "grpo" / "checkpoint-3"
    weights = tmp_path / "weights"
    weights.mkdir()
    for name in ("model.safetensors", "config.json"):
        (weights / name).write_bytes((saved / name).read_bytes())
    folder = tmp_path / "branch"
    taken = take_over(point_of(tmp_path / "gone", 3, weights), folder, CHOICE, save_every=1)
    assert taken is not None
    assert "starts fresh" in taken
    assert reached_step(folder, CHOICE.updates) == 3
    branch = Played(folder)
    assert [step.step for step in branch.steps] == [4]
    assert reached_step(folder, CHOICE.updates) == 4, "it is saved as asked for"
    rate = whole.steps[3].figures["learning_rate"]
    assert branch.steps[0].figures["learning_rate"] == pytest.approx(rate)
    played = [rollout.completion_token_ids for rollout in branch.steps[0].rollouts]
    assert played == [rollout.completion_token_ids for rollout in whole.steps[3].rollouts], "by the same weights"
    kept = point_of(tmp_path / "elsewhere", 3, weights)
    taken = take_over(kept, tmp_path / "sharded", CHOICE, save_every=1, is_sharded=True)
    assert taken is not None
    assert "another hardware.sharding" in taken


def test_before_the_first_step_there_is_no_state(tmp_path: Path) -> None:
    assert take_over(point_of(tmp_path, 0), tmp_path / "branch", CHOICE, save_every=1) == "the weights before GRPO"
    assert newest_complete(tmp_path / "branch") is None
