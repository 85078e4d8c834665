"""Actions of a training run on alarms and on flags of detectors, with the thresholds of the alarms.

`alarm_kinds` explains each alarm and its remedies.
"""

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from pydantic import Field, create_model

from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import Thresholds
from backend.domain.detectors.spec import Action, Subject
from backend.domain.training.blocks import Block, Share, setting
from backend.domain.vocabulary import AlarmAction

AnyAction = Literal["off", "note", "lower_rate", "pause", "stop", "roll_back"]
NoRollback = Literal["off", "note", "pause", "stop"]
"""For problems that neither another learning rate nor an earlier checkpoint solves."""
Ending = Literal["pause", "stop", "roll_back"]
"""For problems that end the run's progress."""
INTERVENTION = "intervention"
"""The alarm of a detector whose flags pause or stop the run. `detectors` has its action."""
CLEARED = "cleared_step"
"""Key of a stored alarm's evidence: the step at which its condition ended."""


class AlarmsChoice(Block):
    """Problems to watch for, and what the run does automatically: off (not watched), note, lower_rate, pause, stop, or
    roll_back to the last good checkpoint as a new branch."""

    title: ClassVar[str] = "Alarms"

    grace_steps: int = setting(20, "Grace period in steps", ge=0)
    """GRPO steps at the start in which only broken runs raise an alarm, because a policy from scratch changes fast.
    Lower it for short runs; raise it if the first alarms are always false."""
    rate_factor: float = setting(0.5, "Learning rate factor", gt=0, lt=1)
    """lower_rate multiplies the learning rate by this factor, and so does a branch after roll_back. Use 0.1 to 0.3 if
    the same alarm returns."""

    no_variance: AnyAction = "note"
    """All episodes of most groups earned the same reward, so the groups teach nothing. A lower learning rate does not
    help. Pause if steps are expensive and the levels could be changed."""
    no_variance_share: Share = 0.8
    """Share of groups above which the alarm is raised, over ten steps. Lower it if episodes are expensive; raise it if
    success is rare and episodes are cheap."""

    entropy_collapse: AnyAction = "note"
    """The policy stops exploring. Use lower_rate or roll_back for unattended runs, and note if a deterministic policy
    is the goal, such as for a game that can be mastered."""
    entropy_floor: Share = 0.1
    """Share of the initial entropy below which the alarm is raised, over ten steps. Raise it for earlier alarms; lower
    it if the policy should become deterministic, such as after a warm-up with much randomness."""

    entropy_explosion: AnyAction = "note"
    """The policy's tokens become random. Use roll_back with an entropy bonus or a high temperature: the format usually
    degrades next."""
    entropy_ceiling: float = Field(default=2.0, gt=1)
    """Multiple of the initial entropy above which the alarm is raised, over ten steps. Raise it if `temperature_end` is
    above `temperature`, or if the policy is very certain after the warm-up."""

    length_growth: AnyAction = "note"
    """Replies become longer without earning more. Pause if tokens cost money or time; use off if longer reasoning is
    the goal."""
    length_ceiling: float = Field(default=1.5, gt=1)
    """Multiple of the initial length above which the alarm is raised, over ten steps. Raise it for models that learn to
    reason in writing; lower it if tokens are expensive."""

    length_collapse: AnyAction = "note"
    """Replies become shorter without earning more. Pause if giving up early may cost less than trying; use off if short
    replies are rewarded on purpose."""
    length_floor: Share = 0.5
    """Share of the initial length below which the alarm is raised, over ten steps. Raise it for earlier alarms; lower
    it if the warm-up taught more words than the task needs."""

    truncation: AnyAction = "note"
    """Many replies are cut off at the token limit. Pause if a truncated reply earns nothing: the run learns little
    until the limit is raised."""
    truncation_share: Share = 0.3
    """Share of episodes above which the alarm is raised, over ten steps. Lower it if no reply should be cut; raise it
    if the limit is tight on purpose."""

    divergence: AnyAction = "note"
    """The policy is far from the policy before GRPO. Measured only if `grpo.beta` is above 0. Use lower_rate if a
    pretrained model should stay close to its start; a large distance alone is not a problem."""
    divergence_limit: float = Field(default=0.5, gt=0)
    """KL divergence in nats per token above which the alarm is raised, over ten steps. Use 0.1 or less to preserve
    other skills of a pretrained model; raise it for small models from scratch, which move far."""

    importance_ratio: AnyAction = "note"
    """The sampled policy differs from the trained one. Pause if sampling and training use different engines or
    precisions: the gradient is then wrong from the first step."""
    importance_ratio_limit: float = Field(default=2.0, gt=1)
    """The alarm is raised if the mean ratio is above this limit or below its inverse, over ten steps. Use 1.1 with one
    update per step, where the ratio should be 1; raise it if `top_p` or `top_k` exclude tokens on purpose."""
    clipped_share: Share = 0.3
    """Share of clipped tokens above which the alarm is raised, over ten steps. Lower it to detect too many
    `grpo.updates` early; raise it if a narrow `grpo.epsilon` should clip much."""

    gradient_norm: AnyAction = "note"
    """Gradients are much larger than before. Use lower_rate for long unattended runs; `grpo.max_grad_norm` already
    limits single steps."""
    gradient_factor: float = Field(default=5.0, gt=1)
    """The alarm is raised if three of five steps exceed this multiple of the median of the steps before. Raise it if
    small batches make the norm vary; use 3 for large models with large batches."""

    not_finite: Ending = "pause"
    """A loss, a gradient or an entropy is not a finite number, so the weights are unusable. The state is not saved. Use
    roll_back to continue automatically with a lower rate; stop to end an experiment there."""

    failed_rollouts: AnyAction = "note"
    """The infrastructure loses episodes. Pause if the environment calls expensive or fragile services; a lower rate
    does not help."""
    failed_share: Share = 0.05
    """Share of a step's episodes above which the alarm is raised, over five steps. Raise it if some failures are
    normal, as with remote services; lower it if every episode is expensive."""

    format_fall: AnyAction = "note"
    """Fewer replies can be parsed than before. Use roll_back for unattended runs: the decline starts slowly and ends in
    a policy whose replies cannot be parsed."""
    format_drop: Share = 0.05
    """The alarm is raised if the share of parsed turns is this far below the best ten steps of the run. Lower it if the
    format was nearly perfect; raise it while the format is still being learned."""

    column_fall: AnyAction = "note"
    """A reward column gets worse while the reward does not: the policy trades one for another. Pause if a column is a
    constraint; use off if the weights are meant to allow such trades."""
    column_drop: float = Field(default=0.085, gt=0)
    """The alarm is raised if a column is this far below its best ten steps, in the column's unit. 0.085 suits columns
    from 0 to 1; raise it for columns of large numbers, lower it for columns of small ones."""

    suspicion: AnyAction = "note"
    """A detector suspects that the policy gains reward without doing the task. Pause to inspect it before the policy
    learns more."""

    heldout_regression: AnyAction = "note"
    """The held-out reward is clearly below its best. Use stop or roll_back for unattended runs; the best checkpoint is
    always kept."""
    heldout_errors: float = Field(default=3.0, gt=0)
    """Number of standard errors below the best at which the alarm is raised. Use 2 to stop early at the price of false
    alarms; raise it if held-out evaluations are frequent, because each may be wrong by chance."""

    heldout_gap: AnyAction = "note"
    """The policy does better on training tasks than on held-out ones. Pause if there are so few training tasks that it
    can memorize them."""
    gap_limit: float = Field(default=0.1, gt=0)
    """The alarm is raised if training reward minus held-out reward grew by this amount since the first held-out
    evaluation. 0.1 suits rewards from 0 to 1; raise it for larger ones."""

    warm_up_flat: NoRollback = "note"
    """The warm-up does not learn. Use pause or stop for unattended runs, because its remaining steps would be
    wasted."""
    warm_up_progress: Share = 0.05
    """Share by which the loss must fall in the first third of the warm-up. Use 0.01 for a pretrained model or a
    checkpoint that knows the task already; raise it to detect slow starts."""

    stall: NoRollback = "note"
    """The run makes no progress. Checked outside the training process. Use pause or stop if an idle machine costs
    money."""
    stall_factor: float = Field(default=10.0, gt=1)
    """The alarm is raised after this multiple of the median step time without progress, and at least `stall_seconds`.
    Raise it if steps differ much in length; lower it if they are all alike."""
    stall_seconds: float = Field(default=300.0, gt=0)
    """Minimum time without progress before the alarm, in seconds. Raise it if a model or an environment starts slowly;
    lower it for earlier alarms in runs of short steps."""

    out_of_memory: Literal["pause", "stop"] = "pause"
    """The training process ran out of memory, and would again. Use stop if no one will change the settings and resume
    the run."""


def actions_of(name: str) -> tuple[str, ...]:
    """Return the possible actions of an alarm; empty if it is always noted."""
    info = AlarmsChoice.model_fields.get(name)
    return get_args(info.annotation) if info else ()


def action_of(choice: AlarmsChoice, name: str) -> AlarmAction | None:
    """Return the run's action for this alarm; None if it is off."""
    action = getattr(choice, name, "note")
    return None if action == "off" else AlarmAction(action)


AS_SET = "as_set"
"""The setting of the environment, else the default of the detector."""
DetectorAction = Literal["as_set", "note", "screen", "pause", "stop_and_roll_back"]


class _Detecting(Block):
    """What happens when a reward-hacking detector flags something: as_set (the setting of the environment, else the
    default of the detector), note, screen (flagged rollouts stay out of the gradient until they are reviewed), pause,
    or stop_and_roll_back (stop, and prepare a branch from the last honest checkpoint)."""

    title: ClassVar[str] = "Detectors"
    only: ClassVar[str] = "recipe=sft_then_grpo|grpo|distillation"

    start_branch: bool = setting(False, "Start the branch automatically")
    """After stop_and_roll_back, start the prepared branch automatically. Otherwise you start it with one click: without
    a fixed reward, a branch finds the same hack again. Use it for unattended runs."""
    thresholds: Thresholds = setting([], "Detector thresholds", is_wide=True)
    """Detector thresholds of this run, such as `paid_exit.reward=0.6`, separated by commas. They override those of the
    environment. Every detector has `suspicion`, the minimum score of a flag; its page lists the others. Raise a
    threshold if its flags are false."""

    def action_of(self, detector: str, otherwise: Action) -> Action:
        wanted = getattr(self, detector, AS_SET)
        return otherwise if wanted == AS_SET else Action(wanted)


if TYPE_CHECKING:

    class DetectorsChoice(_Detecting):
        """With a field for each detector, by its id."""

else:
    _FIELDS = {}
    for _spec in SPECS.values():
        _help = f"{_spec.description} By default: {_spec.action.replace('_', ' ')}."
        if _spec.subject is Subject.RUN:
            _help += " It flags runs: screen means repeats of the rollouts that it names."
        _FIELDS[_spec.id] = DetectorAction, Field(default=AS_SET, description=_help)
    DetectorsChoice = create_model(
        "DetectorsChoice", __base__=_Detecting, __module__=__name__, __doc__=_Detecting.__doc__, **_FIELDS
    )
