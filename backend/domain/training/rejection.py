"""Rejection sampling: its settings, and which episodes of a round are learned from."""

import math
import uuid
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.training.blocks import Block, setting
from backend.domain.training.warm_up import SftChoice


# After STaR (Zelikman et al. 2022, arXiv:2203.14465) and RAFT (Dong et al. 2023, arXiv:2304.06767).
class RejectionChoice(Block):
    """Each round samples several episodes of each task, learns from the best ones by SFT, and is evaluated."""

    title: ClassVar[str] = "Rejection sampling"
    only: ClassVar[str] = "recipe=rejection_sampling"

    rounds: int = setting(4, is_basic=True, ge=1, le=100)
    """Number of rounds. Each samples with the policy of the round before. Use more while the held-out reward still
    rises; the kept share shows how much is left to learn."""
    tasks: int = setting(100, "Tasks per round", is_basic=True, ge=1, le=100_000)
    """Number of training tasks that a round samples. Raise it if a round keeps too few episodes."""
    samples: int = setting(8, "Episodes per task", is_basic=True, ge=1, le=256)
    """Number of episodes of each task. More find a success on harder tasks, and take longer."""
    keep: int = setting(1, "Episodes to keep per task", is_basic=True, ge=1, le=256)
    """Maximum number of episodes of a task to learn from, the best by reward. Equal episodes count once. Keep few, so
    that easy tasks do not crowd out hard ones."""
    minimum_reward: float | None = setting(None, is_basic=True, allow_inf_nan=False)
    """Minimum reward of an episode to learn from. Default: it must succeed, which means the success column (win,
    success, solved, …) at its maximum, else half of the maximum reward. Lower it if a round keeps too few episodes."""
    where: str = setting("", "Filter for episodes", is_wide=True, max_length=MAX_LENGTH)
    """Also require that episodes pass this filter, such as `turns < 6`. Default: all. Use it to teach brevity or a
    format that the reward does not see."""
    start: Literal["latest", "first"] = setting("latest", "Train each round from")
    """latest: the policy of the round before. first: the policy before the first round. Use first if rounds drift, with
    more epochs."""
    temperature: float = setting(1.0, gt=0, le=5)
    """Sampling temperature. Higher finds more different solutions and more failures."""
    epochs: int = setting(2, is_basic=True, ge=1, le=100)
    """How often a round learns each kept episode. Raise it if the loss still falls at the end of a round; more memorize
    the episodes."""
    batch: int = setting(32, "Batch size", ge=1, le=4096)
    """Number of episodes per optimizer step. Lower it if a round has only few steps."""
    learning_rate: float = setting(5e-4, is_basic=True, gt=0, le=1)
    """Peak learning rate of each round. Use 1e-5 for pretrained models, and 10 times that for adapters."""
    warmup_steps: int = Field(default=2, ge=0)
    """Steps of each round until the learning rate reaches its peak; it then decays as a cosine. Raise it if the loss
    jumps at the start of a round."""

    def steps_for(self, examples: int) -> int:
        """Return the optimizer steps of a round with this number of examples."""
        return max(1, math.ceil(examples * self.epochs / self.batch))

    @property
    def most_steps(self) -> int:
        """Optimizer steps of a round that keeps as many episodes as it may."""
        return self.steps_for(self.tasks * min(self.keep, self.samples))

    @property
    def episodes(self) -> int:
        """Number of episodes that all rounds sample."""
        return self.rounds * self.tasks * self.samples

    @property
    def sft(self) -> SftChoice:
        """Settings of the optimizer, for the trainer of SFT."""
        return SftChoice(
            steps=self.most_steps,
            batch=self.batch,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
        )


@dataclass(frozen=True, slots=True)
class SampledEpisode:
    """An episode that passes the bar of its round."""

    id: uuid.UUID
    task: Hashable
    reward: float
    replies: tuple[str, ...]


def best_of_tasks(episodes: Iterable[SampledEpisode], keep: int) -> list[SampledEpisode]:
    """Return up to `keep` different episodes of each task with the highest rewards.

    Tasks stay in the order of their first episode. Of equal rewards, earlier episodes come first.
    """
    by_task: dict[Hashable, list[SampledEpisode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task, []).append(episode)
    kept = []
    for own in by_task.values():
        different: dict[tuple[str, ...], SampledEpisode] = {}
        for episode in sorted(own, key=lambda each: -each.reward):  # stable
            different.setdefault(episode.replies, episode)
        kept += list(different.values())[:keep]
    return kept
