"""Rejection sampling: which episodes a round keeps, and the size of a run."""

import uuid
from typing import Any

from backend.domain.training.configuration import TrainingConfiguration, batch_in_words
from backend.domain.training.rejection import SampledEpisode, best_of_tasks

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
