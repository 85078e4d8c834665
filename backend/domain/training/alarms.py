"""What a training run looks out for while it goes on, from when on it is an alarm, and what the run then does itself.

What each alarm means and what helps is in `alarm_kinds`.
"""

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from backend.domain.training.blocks import Block, Setting, Share
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
    """Problems to watch for, and what the run does automatically: off (not watched), note, lower_rate, pause, stop, or
    roll_back to the last good checkpoint as a new branch."""

    title: ClassVar[str] = "Alarms"

    grace_steps: Annotated[int, Setting(label="Grace period in steps")] = Field(default=20, ge=0)
    """GRPO steps at the start in which only broken runs raise an alarm, because a policy from scratch changes fast.
    Lower it for short runs; raise it if the first alarms are always false."""
    rate_factor: Annotated[float, Setting(label="Learning rate factor")] = Field(default=0.5, gt=0, lt=1)
    """lower_rate multiplies the learning rate by this factor, and so does a branch after roll_back. Use 0.1 to 0.3 if
    the same alarm returns."""

    no_variance: Answering = "note"
    """Most groups teach nothing, because all their episodes earned the same. A lower rate does not help; pause when
    steps are expensive and the levels could be changed instead."""
    no_variance_share: Share = 0.8
    """An alarm above this share of groups, over ten steps. Lower it when episodes are expensive; raise it where success
    is rare and episodes are cheap."""

    entropy_collapse: Answering = "note"
    """The policy stops trying anything else. Choose lower_rate or roll_back for a run that nobody watches; leave it at
    note where a sure policy is the aim, as at the end of a game that is mastered."""
    entropy_floor: Share = 0.1
    """An alarm below this share of the entropy at the beginning, over ten steps. Raise it to hear earlier; lower it
    when the policy is meant to become sure, as after a warm-up that left much to chance."""

    entropy_explosion: Answering = "note"
    """The policy's tokens become random. Choose roll_back when an entropy bonus or a high temperature is tried out: the
    format usually falls next."""
    entropy_ceiling: float = Field(default=2.0, gt=1)
    """An alarm above so many times the entropy at the beginning, over ten steps. Raise it when `temperature_end` rises,
    or when the warm-up left a policy that is very sure of itself."""

    length_growth: Answering = "note"
    """Replies become longer and longer without earning more. Choose pause when tokens cost money or time; off where
    thinking longer is what is wanted."""
    length_ceiling: float = Field(default=1.5, gt=1)
    """An alarm above so many times the length at the beginning, over ten steps. Raise it for models that learn to
    reason in writing; lower it when every token is paid for."""

    length_collapse: Answering = "note"
    """Replies become short without earning more. Choose pause where giving up early could be cheaper than trying; off
    where short replies are rewarded on purpose."""
    length_floor: Share = 0.5
    """An alarm below this share of the length at the beginning, over ten steps. Raise it to hear earlier; lower it when
    the warm-up taught more words than the task needs."""

    truncation: Answering = "note"
    """Many replies are cut off at the token limit. Choose pause where a cut reply earns nothing: the run then learns
    little until the limit is raised."""
    truncation_share: Share = 0.3
    """An alarm above this share of episodes, over ten steps. Lower it where no reply should ever be cut; raise it where
    the limit is tight on purpose."""

    divergence: Answering = "note"
    """The policy is far from what it was before GRPO. Measured where `grpo.beta` is above 0. Choose lower_rate when a
    pretrained model should stay near to what it was; far is not bad in itself."""
    divergence_limit: float = Field(default=0.5, gt=0)
    """An alarm above so many nats a token, over ten steps. Lower it, to 0.1 or less, when a pretrained model's other
    skills matter; raise it for small models from scratch, which move far while they learn."""

    importance_ratio: Answering = "note"
    """What is trained is no longer what played. Choose pause when another engine or precision samples than the one that
    learns: the gradient is then wrong from the first step."""
    importance_ratio_limit: float = Field(default=2.0, gt=1)
    """An alarm when the mean ratio is above this or below its inverse, over ten steps. Lower it, to 1.1, with one
    update for each step, where it should be 1; raise it when `top_p` or `top_k` cut tokens on purpose."""
    clipped_share: Share = 0.3
    """An alarm when more than this share of tokens is clipped, over ten steps. Lower it to hear of too many
    `grpo.updates` early; raise it when a narrow `grpo.epsilon` is meant to clip much."""

    gradient_norm: Answering = "note"
    """Gradients are much longer than they used to be. Choose lower_rate for a long run that nobody watches;
    `grpo.max_grad_norm` cuts what single steps do already."""
    gradient_factor: float = Field(default=5.0, gt=1)
    """An alarm when three of five steps have more than so many times the median of the steps before. Raise it when
    small batches make the norm jump; lower it, to 3, for large models on large batches."""

    not_finite: Ending = "pause"
    """A loss, a gradient or an entropy is no number: the weights are spoiled. The spoiled state is not saved. Choose
    roll_back to go on by itself with a lower rate; stop when the run is an experiment that should end there."""

    failed_rollouts: Answering = "note"
    """The infrastructure loses episodes. Choose pause where the environment calls paid or fragile services; a lower
    rate does not help."""
    failed_share: Share = 0.05
    """An alarm above this share of a step's episodes, over five steps. Raise it where some losses are normal, as with
    remote services; lower it when every episode is expensive."""

    format_fall: Answering = "note"
    """Replies that could be read before can be read no longer. Choose roll_back for a run that nobody watches: it
    begins slowly, and ends in a policy that is not understood."""
    format_drop: Share = 0.05
    """An alarm when the share of turns that could be parsed is so far below the best ten steps of the run. Lower it
    when the format was nearly perfect; raise it while the format is still being learned."""

    column_fall: Answering = "note"
    """A reward column gets worse while the reward does not: the policy trades one for another. Choose pause when a
    column is a limit that must hold; off where trading is what the weights ask for."""
    column_drop: float = Field(default=0.085, gt=0)
    """An alarm when a column is so far below its best ten steps, in its own unit. Set it by the unit: 0.085 suits
    columns from 0 to 1; raise it for columns of large numbers, lower it for columns of small ones."""

    suspicion: Answering = "note"
    """A detector suspects that the reward is gained without doing the task. Pause to look before more is learned."""

    heldout_regression: Answering = "note"
    """The held-out reward is clearly below its best. Choose stop or roll_back for a run that nobody watches; the best
    checkpoint is kept anyway."""
    heldout_errors: float = Field(default=3.0, gt=0)
    """An alarm when it is so many standard errors below. Lower it, to 2, to stop early at the price of false alarms;
    raise it when examinations are frequent, because each one is a chance to be wrong."""

    heldout_gap: Answering = "note"
    """The policy does better on what it trains on than on what it has never seen. Choose pause when training tasks are
    few enough to be learned by heart."""
    gap_limit: float = Field(default=0.1, gt=0)
    """An alarm when training reward minus held-out reward grew by this since the first examination. Set it by the
    reward's unit: 0.1 suits rewards from 0 to 1; raise it where they are larger."""

    warm_up_flat: Halting = "note"
    """The warm-up does not learn. Choose pause or stop for a run that nobody watches: the rest of its steps would be
    spent for nothing."""
    warm_up_progress: Share = 0.05
    """An alarm when a third of the warm-up has not taken this share off the loss. Lower it, to 0.01, for a pretrained
    model or a checkpoint that knows the task already; raise it to hear of slow starts."""

    stall: Halting = "note"
    """Nothing happens any more. Watched from outside of the training process. Choose pause or stop where a machine that
    waits costs money."""
    stall_factor: float = Field(default=10.0, gt=1)
    """An alarm after so many times the median step without a sign of life, and `stall_seconds` at least. Raise it when
    steps differ much in length; lower it when they are all alike."""
    stall_seconds: float = Field(default=300.0, gt=0)
    """Seconds without a sign of life that pass at least before the alarm. Raise it where a model or an environment
    takes long to start; lower it to hear sooner of a run of short steps."""

    out_of_memory: Literal["pause", "stop"] = "pause"
    """The memory did not suffice. Trying the same again would not either. Choose stop when nobody will change the
    choices and resume it."""


def actions_of(name: str) -> tuple[str, ...]:
    """What may be chosen for an alarm; nothing for one that is always noted."""
    info = AlarmsChoice.model_fields.get(name)
    return get_args(info.annotation) if info else ()


def action_of(choice: AlarmsChoice, name: str) -> AlarmAction | None:
    """What the run does about this alarm; None when it is off."""
    wanted = getattr(choice, name, "note")
    return None if wanted == "off" else AlarmAction(wanted)
