"""Preference training: its settings, and how stored episodes of the same task become pairs."""

import random
import uuid
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.training.blocks import Block, setting
from backend.domain.training.warm_up import MAX_RUNS
from backend.domain.vocabulary import Verdict

WRONG = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})
"""Verdicts on episodes that are never preferred."""


class PreferenceChoice(Block):
    """Learn from pairs of stored episodes of the same task, of which one is better (DPO)."""

    title: ClassVar[str] = "Preferences (DPO)"
    only: ClassVar[str] = "recipe=dpo"

    source: Literal["verdicts", "rewards", "both"] = setting("both", "Pairs from", is_basic=True)
    """verdicts: an episode judged honest against one judged a hack or a broken reward. rewards: a higher reward against
    a lower one. both: all of these. An episode judged wrong is never preferred, whatever its reward. Use verdicts to
    unlearn a hack that the reward likes."""
    runs: list[uuid.UUID] = setting([], is_basic=True, is_wide=True, max_length=MAX_RUNS)
    """Ids of the runs to take episodes from, separated by commas. Default: the latest runs of this environment.
    Held-out tasks are never used. Prefer runs of the policy that is trained: pairs of other policies teach less."""
    where: str = setting("", "Filter for rollouts", is_basic=True, is_wide=True, max_length=MAX_LENGTH)
    """Only use rollouts that pass this filter, such as `format = 1`. Default: all. Use it if some rollouts differ for
    reasons that should not be learned."""
    margin: float = setting(0.1, "Minimum difference in reward", is_basic=True, ge=0, allow_inf_nan=False)
    """Pairs from rewards only: how much the rewards must differ. Raise it if small differences are noise."""
    per_task: int = setting(4, "Pairs per task", ge=1, le=1000)
    """Maximum number of pairs from the same task, those with the largest differences first. Lower it if few tasks have
    most of the pairs."""
    most: int = setting(20_000, "Maximum pairs", ge=1, le=200_000)
    """Maximum number of pairs to learn from. If there are more, a random sample is drawn with the seed."""
    fewest: int = setting(32, "Minimum pairs", ge=1, le=200_000)
    """With fewer pairs, the run is refused. Lower it only to try things out: a handful of pairs is memorized."""
    loss: Literal["sigmoid", "hinge", "ipo", "robust"] = setting("sigmoid")
    """sigmoid: DPO. hinge: pairs that are far enough apart carry no loss. ipo: a fixed distance, which overfits less.
    robust: expects some wrong pairs (`label_noise`). Use ipo if the margin keeps growing while the held-out reward
    falls."""
    label_noise: float = setting(0.1, only="preferences.loss=robust", ge=0, lt=0.5)
    """Probability that a pair is the wrong way around. Raise it if reviewers often disagree."""
    beta: float = setting(0.1, "KL coefficient (β)", is_basic=True, gt=0, le=10)
    """How strongly the policy is kept near the one before training. Raise it if the format degrades."""
    epochs: int = setting(1, is_basic=True, ge=1, le=100)
    """How often each pair is learned. Raise it if the margin still grows and the held-out reward rises; more than three
    usually overfit."""
    batch: int = setting(16, "Batch size", ge=1, le=4096)
    """Number of pairs per optimizer step. Raise it if the loss is noisy."""
    micro_batches: int = setting(1, "Micro-batches", ge=1, le=4096)
    """Number of parts in which the gradient of a step is computed. Raise it if a step runs out of memory; the result is
    the same."""
    learning_rate: float = setting(1e-4, is_basic=True, gt=0, le=1)
    """Peak learning rate. Use 5e-7 to 1e-6 for pretrained models, and 10 times that for adapters."""
    warmup_steps: int = Field(default=5, ge=0)
    """Steps until the learning rate reaches its peak; it then decays as a cosine. Raise it if the loss jumps at the
    start."""
    adam_beta2: float = Field(default=0.99, gt=0, lt=1)
    """Decay rate of Adam's second moment (β₂). Lower adapts sooner; 0.999 suits long runs of large models."""
    max_grad_norm: float = setting(1.0, "Maximum gradient norm", gt=0)
    """Gradients are clipped to this norm. Lower it if the loss has spikes."""

    def steps_for(self, pairs: int) -> int:
        """Return the number of optimizer steps for this number of pairs."""
        return max(1, -(-pairs * self.epochs // self.batch))


@dataclass(frozen=True, slots=True)
class RankedEpisode:
    """A stored episode that may become half of a pair."""

    id: uuid.UUID
    task: Hashable
    reward: float | None
    verdict: Verdict | None = None
    """The newest verdict that is not unsure."""


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two episodes of the same task."""

    chosen: uuid.UUID
    rejected: uuid.UUID
    reason: Literal["verdicts", "rewards"]
    difference: float
    """Reward of the chosen episode minus that of the rejected one. It may be negative for verdicts."""


def build_pairs(episodes: Iterable[RankedEpisode], choice: PreferenceChoice) -> list[PreferencePair]:
    """Return the pairs of all tasks, in the order of the tasks' first episodes.

    By verdict, the honest episodes with the highest rewards are paired with the wrong ones with the highest rewards,
    because these are the hacks that pay. By reward, the best is paired with the worst, the second best with the second
    worst, and so on. Within a task, an episode is in at most one pair of each kind.
    """
    by_task: dict[Hashable, list[RankedEpisode]] = {}
    for episode in episodes:
        by_task.setdefault(episode.task, []).append(episode)
    pairs = []
    for own in by_task.values():
        ranked = sorted(own, key=lambda each: -_reward(each))  # stable
        wrong = [each for each in ranked if each.verdict in WRONG]
        honest = [each for each in ranked if each.verdict is Verdict.HONEST]
        right = [each for each in ranked if each.verdict not in WRONG and each.reward is not None]
        found: list[PreferencePair] = []
        if choice.source != "rewards":
            found += [_pair(*pair, "verdicts") for pair in zip(honest, wrong, strict=False)]
        if choice.source != "verdicts":
            matched = list(zip(right, reversed(right), strict=True))[: len(right) // 2]
            paired = [_pair(*pair, "rewards") for pair in matched]
            found += [pair for pair in paired if pair.difference > 0 and pair.difference >= choice.margin]
        pairs += found[: choice.per_task]
    return pairs


def sampled_pairs(pairs: Sequence[PreferencePair], choice: PreferenceChoice, seed: int) -> list[PreferencePair]:
    """Return at most `most` pairs in random order, the same ones for the same seed."""
    return random.Random(f"pairs/{seed}").sample(pairs, min(choice.most, len(pairs)))


def _reward(episode: RankedEpisode) -> float:
    return float("-inf") if episode.reward is None else episode.reward


def _pair(chosen: RankedEpisode, rejected: RankedEpisode, reason: Literal["verdicts", "rewards"]) -> PreferencePair:
    return PreferencePair(chosen.id, rejected.id, reason, (chosen.reward or 0.0) - (rejected.reward or 0.0))
