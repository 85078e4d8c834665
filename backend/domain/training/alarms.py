"""What a training run looks out for while it goes on, from when on it is an alarm, and what the run then does itself.

What each alarm means and what helps is in `alarm_kinds`.
"""

from typing import Literal, get_args

from pydantic import Field

from backend.domain.training.blocks import Block, Share
from backend.domain.vocabulary import AlarmAction

Answering = Literal["off", "note", "lower_rate", "pause", "stop", "roll_back"]
Halting = Literal["off", "note", "pause", "stop"]
"""Where another rate or an earlier checkpoint would not help."""
Ending = Literal["pause", "stop", "roll_back"]
"""What is broken cannot go on."""
INTERVENTION = "intervention"
"""The alarm of a detector whose flags pause or stop the run. What it does is a choice of `detectors`."""
CLEARED = "cleared_step"
"""Key of a stored alarm's evidence: the step at which its condition was over."""


class AlarmsChoice(Block):
    """What looks unhealthy in training, and what the run does about it by itself: off (nobody looks), note (say it),
    lower_rate, pause, stop, or roll_back to the last good checkpoint as a new branch."""

    grace_steps: int = Field(default=20, ge=0)
    """GRPO steps at the beginning in which only what is broken raises an alarm: a policy from scratch changes fast."""
    rate_factor: float = Field(default=0.5, gt=0, lt=1)
    """What `lower_rate` multiplies the learning rate by; a branch after `roll_back` begins with it too."""

    no_variance: Answering = "note"
    """Most groups teach nothing, because all their episodes earned the same."""
    no_variance_share: Share = 0.8
    """An alarm above this share of groups, over ten steps."""

    entropy_collapse: Answering = "note"
    """The policy stops trying anything else."""
    entropy_floor: Share = 0.1
    """An alarm below this share of the entropy at the beginning, over ten steps."""

    entropy_explosion: Answering = "note"
    """The policy's tokens become random."""
    entropy_ceiling: float = Field(default=2.0, gt=1)
    """An alarm above so many times the entropy at the beginning, over ten steps."""

    length_growth: Answering = "note"
    """Replies become longer and longer without earning more."""
    length_ceiling: float = Field(default=1.5, gt=1)
    """An alarm above so many times the length at the beginning, over ten steps."""

    length_collapse: Answering = "note"
    """Replies become short without earning more."""
    length_floor: Share = 0.5
    """An alarm below this share of the length at the beginning, over ten steps."""

    truncation: Answering = "note"
    """Many replies are cut off at the token limit."""
    truncation_share: Share = 0.3
    """An alarm above this share of episodes, over ten steps."""

    divergence: Answering = "note"
    """The policy is far from what it was before GRPO. Measured where `grpo.beta` is above 0."""
    divergence_limit: float = Field(default=0.5, gt=0)
    """An alarm above so many nats a token, over ten steps."""

    importance_ratio: Answering = "note"
    """What is trained is no longer what played."""
    importance_ratio_limit: float = Field(default=2.0, gt=1)
    """An alarm when the mean ratio is above this or below its inverse, over ten steps."""
    clipped_share: Share = 0.3
    """An alarm when more than this share of tokens is clipped, over ten steps."""

    gradient_norm: Answering = "note"
    """Gradients are much longer than they used to be."""
    gradient_factor: float = Field(default=5.0, gt=1)
    """An alarm when three of five steps have more than so many times the median of the steps before."""

    not_finite: Ending = "pause"
    """A loss, a gradient or an entropy is no number: the weights are spoiled. The spoiled state is not saved."""

    failed_rollouts: Answering = "note"
    """The infrastructure loses episodes."""
    failed_share: Share = 0.05
    """An alarm above this share of a step's episodes, over five steps."""

    format_fall: Answering = "note"
    """Replies that could be read before can be read no longer."""
    format_drop: Share = 0.05
    """An alarm when the share of turns that could be parsed is so far below the best ten steps of the run."""

    column_fall: Answering = "note"
    """A reward column gets worse while the reward does not: the policy trades one for another."""
    column_drop: float = Field(default=0.085, gt=0)
    """An alarm when a column is so far below its best ten steps, in its own unit."""

    suspicion: Answering = "note"
    """A detector suspects that the reward is gained without doing the task. Pause to look before more is learned."""

    heldout_regression: Answering = "note"
    """The held-out reward is clearly below its best."""
    heldout_errors: float = Field(default=3.0, gt=0)
    """An alarm when it is so many standard errors below."""

    heldout_gap: Answering = "note"
    """The policy does better on what it trains on than on what it has never seen."""
    gap_limit: float = Field(default=0.1, gt=0)
    """An alarm when training reward minus held-out reward grew by this since the first examination."""

    warm_up_flat: Halting = "note"
    """The warm-up does not learn."""
    warm_up_progress: Share = 0.05
    """An alarm when a third of the warm-up has not taken this share off the loss."""

    stall: Halting = "note"
    """Nothing happens any more. Watched from outside of the training process."""
    stall_factor: float = Field(default=10.0, gt=1)
    """An alarm after so many times the median step without a sign of life …"""
    stall_seconds: float = Field(default=300.0, gt=0)
    """… and after at least so many seconds."""

    out_of_memory: Literal["pause", "stop"] = "pause"
    """The memory did not suffice. Trying the same again would not either."""


def actions_of(name: str) -> tuple[str, ...]:
    """What may be chosen for an alarm; nothing for one that is always noted."""
    info = AlarmsChoice.model_fields.get(name)
    return get_args(info.annotation) if info else ()


def action_of(choice: AlarmsChoice, name: str) -> AlarmAction | None:
    """What the run does about this alarm; None when it is off."""
    wanted = getattr(choice, name, "note")
    return None if wanted == "off" else AlarmAction(wanted)
