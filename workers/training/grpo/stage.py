"""The GRPO stage as data: what it is given, and what each step leaves behind. Nothing here knows TRL."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.domain.environments.manifest import RewardColumn
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.hardware import VllmChoice
from workers.training.hardware import FLOAT32, Hardware
from workers.training.ranks.playing import PlayPlans
from workers.training.ranks.ranks import ALONE, Ranks

REPLACED = "grpo_replaced"
"""Metric of a rollout whose group gave place to a fresh one: it was played, and taught nothing."""
MASKED = "grpo_masked"
"""Metric of a rollout that has no part in its group: it was judged a hack or a broken reward, or flagged, before its
step was learned, or its task is a canary."""
SCREENED = "grpo_screened"
"""Metric of a masked rollout that nobody judged yet: a detector that screens flagged it."""

Play = Callable[[int, Sequence[int]], list[Rollout]]
"""(training step from 1, ordinals of groups) → all members of each group, in order. Ordinals beyond the step's groups
are fresh tasks: number `n` of a round of replacements takes the place of group `n mod tasks_per_step`."""
Masked = Callable[[Sequence[Rollout]], set[int]]
"""Which of a step's rollouts, by their place, must not be learned from."""
Screened = Callable[[int, Sequence[Rollout]], set[int]]
"""(training step, rollouts) → which of them, by their place, are masked until somebody judged them."""


def _none(_: Sequence[Rollout]) -> set[int]:
    return set()


def _nothing(_: int, __: Sequence[Rollout]) -> set[int]:
    return set()


@dataclass(slots=True)
class GrpoControls:
    """What may change between two steps. Read before each step; a resumed run must be given what it had."""

    learning_rate_factor: float = 1.0
    """The optimiser takes the schedule's rate times this; the schedule itself goes on as planned."""
    temperature: float | None = None
    """In place of the planned one."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How likely the policy finds the tokens in training, compared with when it sampled them; 1 is the same."""

    mean: float
    highest: float
    low_clip: float | None
    """Share of tokens that teach nothing because the ratio fell too low; None where the loss cuts nothing."""
    high_clip: float | None


@dataclass(slots=True)
class GrpoStep:
    """One training step, after it was taken."""

    step: int
    rollouts: list[Rollout]
    """All that were played, with their advantages: those that were learned from in order, then replaced ones."""
    loss: float
    grad_norm: float
    learning_rate: float
    """As applied: the schedule's rate times the factor."""
    learning_rate_factor: float
    temperature: float
    entropy: float
    divergence: float | None
    """From the policy before GRPO; None unless `beta` is above 0."""
    no_variance: float
    """Share of the groups learned from whose rewards were all equal: they teach nothing."""
    ratio: Ratio
    rollout_seconds: float
    reward_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimiser_seconds: float
    other_seconds: float
    """Padding, and states that were saved before the step."""
    seconds: float

    @property
    def idle_seconds(self) -> float:
        """Nothing of all that: bookkeeping, and waiting for others."""
        learning = self.forward_seconds + self.backward_seconds + self.optimiser_seconds
        return max(0.0, self.seconds - self.rollout_seconds - self.reward_seconds - learning - self.other_seconds)

    @property
    def learned(self) -> list[Rollout]:
        """Those whose groups the optimiser was given."""
        return [rollout for rollout in self.rollouts if REPLACED not in rollout.metrics]


OnStep = Callable[[GrpoStep], bool]
"""Returns whether to go on."""


@dataclass(slots=True)
class GrpoRun:
    """What a GRPO stage is made of."""

    model: Any
    tokenizer: Any
    choice: GrpoChoice
    columns: Sequence[RewardColumn]
    """Of a mix: those of all environments."""
    seed: int
    folder: Path
    """Where the trainer's own states are kept."""
    save_every: int
    play: Play
    """Of the leader: plays with all ranks."""
    on_step: OnStep
    """Of the leader."""
    masked: Masked = _none
    screened: Screened = _nothing
    controls: GrpoControls = field(default_factory=GrpoControls)
    set_temperature: Callable[[float], None] = lambda _: None
    """Tells the sampler, before a step is played."""
    columns_of: Callable[[Rollout], Sequence[RewardColumn]] | None = None
    """Only for a mix: the columns of the rollout's own environment, whose weights make its reward."""
    before_save: Callable[[], None] = lambda: None
    """Called before a state of the trainer counts as complete: what its steps left must be stored by then."""
    hardware: Hardware = FLOAT32
    vllm: VllmChoice | None = None
    """Where vLLM samples."""
    set_generation: Callable[[Any], None] = lambda _: None
    """Given TRL's vLLM generation, before anything is played; only where vLLM samples."""
    longest_completion: int = 256
    """Only a scale of the `dr_grpo` loss."""
    ranks: Ranks = ALONE
    play_share: PlayPlans | None = None
    """Of a follower: plays what the leader asks of this rank."""

    @property
    def rows(self) -> int:
        """Episodes whose gradient this rank computes at once."""
        return self.choice.episodes_per_step // (self.choice.micro_batches * self.ranks.count)

    def columns_for(self, rollout: Rollout) -> Sequence[RewardColumn]:
        return self.columns if self.columns_of is None else self.columns_of(rollout)
