"""The choices of reinforcement (GRPO): what is played, how it is sampled, and what the optimiser makes of it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from backend.domain.training.blocks import Block

LossType = Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
_OF_SEQUENCES = frozenset({"grpo", "sapo", "luspo"})
"""Losses that average by episode, as a ratio of whole episodes needs."""
CISPO_CEILING = 5.0
"""Of the ratio itself; ScaleRL's value (arXiv 2510.13786)."""


class GrpoChoice(Block):
    """Reinforcement: play groups of the same task, and make what did better than its group more likely."""

    steps: int = Field(default=100, ge=1, le=1_000_000)
    """Training steps; each plays tasks × group size new episodes. More while the held-out reward still rises; the best
    checkpoint is kept anyway."""
    tasks_per_step: int = Field(default=20, ge=1, le=4096)
    """Different tasks in a step. More make each step's direction surer, which helps most when rewards are noisy or
    formats collapse late."""
    group_size: int = Field(default=8, ge=2, le=256)
    """Episodes of the same task, compared with each other. Larger groups find rare successes and rare failures: raise
    it when many groups have no variance."""
    levels: list[Annotated[float, Field(ge=0)]] | None = None
    """Relative share of each level in every step, from level 0, such as `2,1,1`; empty: the same for all. Give little
    where episodes always or never succeed."""
    replace_uniform: int = Field(default=0, ge=0, le=20)
    """Rounds in which groups whose rewards are all equal give place to groups of fresh tasks, because they teach
    nothing (DAPO's dynamic sampling); 0: they stay. Turn on when many groups have no variance and episodes are cheap:
    each round plays more. The share thrown away is a curve."""
    learning_rate: float = Field(default=5e-4, gt=0, le=1)
    """Highest learning rate. 5e-4 suits tiny models from scratch, 1e-6 to 1e-5 pretrained ones, ten times that their
    adapters. Formats collapse late when it is too high."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls over the run. constant where the end is not known; cosine and linear settle."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps until the learning rate is reached. Choose some, such as 10, for large models, whose first gradients
    mislead Adam."""
    updates: int = Field(default=1, ge=1, le=64)
    """Optimiser updates from the same episodes. 1 stays on-policy and is the steadiest. 2 to 4 learn more from episodes
    that are expensive to play; `epsilon` and the ratio's level then decide how far one step may go, and with 1 they
    decide nothing."""
    loss_type: LossType = "dapo"
    """How token losses are weighed. dapo: every token of the step counts the same. grpo: every episode does, so long
    ones speak less per token. dr_grpo: divided by a fixed length. bnpo: as dapo, within each part of the step. cispo:
    the ratio is cut but no token loses its gradient. sapo: a soft gate instead of a cut. luspo: whole episodes,
    weighted by their length. vespo: whole episodes, softly weighted. With one update cispo and vespo learn as dapo
    does, and sapo as grpo: choose among them when `updates` is above 1, and dr_grpo or dapo when replies grow long
    without earning more."""
    importance_level: Literal["auto", "token", "sequence"] = "auto"
    """How far the policy has moved since the episode was played: measured at each token, or over the whole episode
    (GSPO), which is calmer for long replies and models of experts. auto: what the loss type was made for; choose
    another when `updates` is above 1 and the ratio's curve is restless."""
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """How far the ratio may fall below 1, and rise above it, before a token stops teaching. Smaller is steadier; for
    ratios of whole episodes GSPO takes 3e-4. Counts with more than one update; sapo and vespo have no such cut."""
    epsilon_high: float | None = Field(default=None, gt=0, le=100)
    """Another limit above 1, so that rare tokens can become likely; DAPO takes 0.28. Empty: the same as below. Raise it
    when the entropy falls with several updates. For cispo it is the greatest ratio itself; empty: 5."""
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    """How reward columns become one advantage. sum_then_normalize: the weighted sum is compared within its group.
    normalize_then_sum: each column is compared on its own first (GDPO); choose it when a column of small numbers is not
    heard beside one of large numbers. It always divides by the spread, whatever `scale_rewards` says."""
    credit: Literal["episode", "turn"] = "episode"
    """Which tokens a reward speaks to. episode: all of them. turn: a turn's tokens get what came from that turn on,
    compared with the group at the same turn; use it when the environment's columns tell single turns apart. With one
    turn both are the same."""
    scale_rewards: Literal["none", "group", "batch"] = "none"
    """Divide advantages by the spread of the group or of the step, or leave them. The group's makes easy and hard tasks
    speak equally loud, and noise as loud as signal where all did nearly the same."""
    beta: float = Field(default=0.01, ge=0, le=10)
    """Weight of the divergence from the policy as it was before GRPO. A little keeps the reply's format from drifting
    away; raise it when the format falls; 0 needs no second model in memory."""
    temperature: float = Field(default=1.0, gt=0, le=5)
    """Sampling temperature in training. Above 1 tries more, below 1 less; a group that all plays the same learns
    nothing."""
    temperature_end: float | None = Field(default=None, gt=0, le=5)
    """Temperature of the last step, reached in a straight line; empty: it stays. Choose a lower one to explore first
    and settle then, a higher one against entropy that collapses."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that together reach this probability. Choose less than 1 when rare slips spoil
    training episodes; the loss still sees all tokens, so stay above 0.9."""
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    """Sample from at most so many of the likeliest tokens; 0: all. As `top_p`, it parts sampling from the loss: set it,
    to 50 or more, only when a large vocabulary's rare tokens spoil episodes."""
    mask_truncated: bool = False
    """Episodes with a reply that was cut at its token limit teach nothing, though they count in their group's mean.
    Turn on when good long replies are being cut; leave off when rambling should be unlearned."""
    max_grad_norm: float = Field(default=0.1, gt=0)
    """Longer gradients are cut to this length. Low values hold single steps back; raise it when the curve of the norm
    is always above it and learning is slow."""
    adam_beta2: float = Field(default=0.99, gt=0, lt=1)
    """How long the optimiser remembers the size of gradients (Adam's β₂). Lower follows sooner and is noisier; 0.999
    suits long runs of large models."""
    entropy_bonus: float = Field(default=0.0, ge=0, le=1)
    """Reward for variety of tokens. It can destroy the reply's format, with dr_grpo soonest: try 0.001 when the entropy
    collapses and neither a higher temperature nor a lower rate holds it."""
    micro_batches: int = Field(default=1, ge=1, le=4096)
    """Parts in which a step's gradient is computed, to save memory. Raise it when a step does not fit; what is learned
    stays the same."""

    @property
    def episodes_per_step(self) -> int:
        return self.tasks_per_step * self.group_size

    @property
    def ratio_level(self) -> Literal["token", "sequence"]:
        """`importance_level` with `auto` resolved."""
        if self.importance_level == "auto":
            return "sequence" if self.loss_type == "luspo" else "token"
        return self.importance_level

    @property
    def ratio_ceiling(self) -> float | None:
        """`epsilon_high` as the loss type reads it."""
        return CISPO_CEILING if self.loss_type == "cispo" and self.epsilon_high is None else self.epsilon_high

    def temperature_at(self, step: int) -> float:
        """Of a step, from 1."""
        if self.temperature_end is None or self.steps == 1:
            return self.temperature
        share = (step - 1) / (self.steps - 1)
        return self.temperature + share * (self.temperature_end - self.temperature)

    @model_validator(mode="after")
    def _divides(self) -> "GrpoChoice":
        per_part, rest = divmod(self.episodes_per_step, self.micro_batches)
        if rest:
            raise ValueError(f"{self.episodes_per_step} episodes a step do not divide into {self.micro_batches} parts")
        if per_part < 1:
            raise ValueError("a part needs at least one episode")
        if self.levels is not None and sum(self.levels) <= 0:
            raise ValueError("give at least one level a share above 0")
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "GrpoChoice":
        if problem := self._contradiction():
            raise ValueError(problem)
        return self

    def _contradiction(self) -> str | None:
        if self.loss_type == "luspo" and self.ratio_level == "token":
            return "luspo is made for the ratio of whole episodes: set importance_level to sequence or auto"
        if self.ratio_level == "sequence" and self.loss_type not in _OF_SEQUENCES:
            fitting = ", ".join(sorted(_OF_SEQUENCES))
            return (
                f"importance_level sequence needs a loss that averages by episode ({fitting}); "
                f"{self.loss_type} does not"
            )
        if self.loss_type == "cispo" and self.ratio_ceiling is not None and self.ratio_ceiling <= 1:
            return "for cispo epsilon_high is the greatest ratio itself: it must be above 1, such as 5, or empty"
        if self.credit == "turn" and (self.ratio_level == "sequence" or self.loss_type == "vespo"):
            return "credit by turn needs ratios of tokens: choose credit episode, or another loss type and level"
        if self.credit == "turn" and self.aggregation == "normalize_then_sum":
            return "credit by turn adds the columns up first: set aggregation to sum_then_normalize"
        return None
