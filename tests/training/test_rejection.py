"""Rejection sampling: which episodes a round keeps, and the size of a run."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from backend.domain.training.configuration import TrainingConfiguration, batch_in_words
from backend.domain.training.examples import Conversation
from backend.domain.training.rejection import RejectionChoice, SampledEpisode, best_of_tasks
from tests.training.game import Game, warmed_up
from workers.models.chat import ChatTokens
from workers.training.examples import example_of_conversation
from workers.training.sft import SftRun, train_sft

ROUNDS: dict[str, Any] = {
    "recipe": "rejection_sampling",
    "rejection": {"rounds": 2, "tasks": 24, "samples": 6, "keep": 2, "epochs": 2, "batch": 8, "learning_rate": 2e-3},
    "heldout": {"tasks": 60},
}


def episode(task: int, reward: float, *replies: str) -> SampledEpisode:
    return SampledEpisode(uuid.uuid4(), task, reward, replies)


def test_the_best_different_episodes_of_each_task_are_kept() -> None:
    low, high, same, other = episode(1, 0.5, "a"), episode(1, 1.0, "b"), episode(1, 1.0, "b"), episode(1, 0.9, "c")
    alone = episode(0, 0.2, "a")
    assert best_of_tasks([low, high, same, other, alone], 2) == [high, other, alone]
    assert best_of_tasks([low, high, same, other, alone], 1) == [high, alone]
    assert best_of_tasks([same, high], 5) == [same], "of equal episodes, the first"
    assert best_of_tasks([], 3) == []


def test_the_summary_counts_episodes_and_steps() -> None:
    configuration = TrainingConfiguration.model_validate({**ROUNDS, "model": {"source": "base", "base": "a/b"}})
    assert batch_in_words(configuration) == (
        "24 tasks × 6 episodes = 144 per round; 2 rounds = 288 rollouts; at most 12 SFT steps of 8 per round"
    )
    assert configuration.total_steps == 2
    assert configuration.total_rollouts == 288 + 3 * 60
    assert configuration.problems(scripts=[], levels=3) == []
    scratch = configuration.model_copy(update={"model": TrainingConfiguration().model})
    assert "start from a checkpoint" in scratch.problems(scripts=[], levels=3)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_learning_the_best_episodes_raises_the_reward_round_by_round(tmp_path: Path) -> None:
    model, tokenizer = warmed_up(tmp_path / "start", 6)
    chat, choice, means = ChatTokens(tokenizer), RejectionChoice(batch=4, epochs=4, learning_rate=1e-3), []
    for number in range(1, 7):
        rollouts = Game(model, tokenizer).play(number, range(24))
        means.append(sum(rollout.reward or 0.0 for rollout in rollouts) / len(rollouts))
        by_id = {uuid.uuid4(): rollout for rollout in rollouts}
        episodes = [
            SampledEpisode(id_, each.group, each.reward or 0.0, tuple(step.reply for step in each.steps))
            for id_, each in by_id.items()
        ]
        kept = [by_id[episode.id] for episode in best_of_tasks(episodes, 1)]
        made = [example_of_conversation(Conversation(each.messages, (True, True)), chat) for each in kept]  # type: ignore[arg-type]
        examples = [example for example in made if example is not None]
        train_sft(
            SftRun(
                model=model,
                tokenizer=tokenizer,
                choice=choice.sft.model_copy(update={"steps": choice.steps_for(len(examples))}),
                examples=examples,
                seed=number,
                folder=tmp_path / str(number),
                save_every=1000,
                on_step=lambda *_: True,
            )
        )
    assert means[-1] > means[0] + 1
