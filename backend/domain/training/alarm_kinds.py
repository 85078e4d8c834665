"""Explanations of the alarms: meaning, usual cause, remedies, formula and source."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from backend.domain.training.alarms import INTERVENTION, AlarmsChoice
from backend.domain.vocabulary import AlarmAnswer

_SLOWER, _BACK, _SMALLER = AlarmAnswer.LOWER_RATE, AlarmAnswer.ROLL_BACK, AlarmAnswer.SAVE_MEMORY


@dataclass(frozen=True, slots=True)
class AlarmKind:
    """One way in which training becomes unhealthy."""

    name: str
    title: str
    sentence: str
    cause: str
    advice: str
    formula: str
    source: str
    thresholds: tuple[str, ...] = ()
    """Names in `AlarmsChoice`."""
    answers: tuple[AlarmAnswer, ...] = ()
    """Remedies that one click applies, most likely first, in addition to pause, stop and dismiss."""

    def limits(self, choice: AlarmsChoice) -> dict[str, float]:
        return {name: getattr(choice, name) for name in self.thresholds}


_KINDS = (
    AlarmKind(
        name="no_variance",
        title="Groups without variance",
        sentence="All episodes of most groups earn the same reward.",
        cause="The tasks are too easy or too hard for the policy, or the reward is too coarse. Such a group has no"
        " advantage and no effect.",
        advice="Change the mix of levels, enlarge the groups, or replace groups without variance.",
        formula="mean of groups/no_variance over 10 steps > no_variance_share",
        source="TRL's frac_reward_zero_std; limits as in prime-rl and tinker-cookbook",
        thresholds=("no_variance_share",),
    ),
    AlarmKind(
        name="entropy_collapse",
        title="Entropy collapse",
        sentence="The policy has nearly stopped exploring.",
        cause="The learning rate is too high for so little variety, or only a few replies are rewarded. Replies that"
        " are no longer sampled cannot be learned.",
        advice="Lower the rate, raise the temperature or beta, or roll back to an earlier checkpoint.",
        formula="mean of entropy over 10 steps < entropy_floor × median of steps 5 to 20",
        source="PPO and GRPO practice: entropy against its own beginning",
        thresholds=("entropy_floor",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="entropy_explosion",
        title="Entropy explosion",
        sentence="The policy's tokens become random.",
        cause="An entropy bonus, a high temperature or a high learning rate moves probability to meaningless tokens."
        " The format usually degrades next.",
        advice="Remove the entropy bonus, lower the rate, and roll back to before the rise.",
        formula="mean of entropy over 10 steps > entropy_ceiling × median of steps 5 to 20",
        source="Proctor's study of tic-tac-toe (an entropy bonus of 0.01 did it)",
        thresholds=("entropy_ceiling",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="length_growth",
        title="Length blow-up",
        sentence="Replies become longer without earning more.",
        cause="Length itself is rewarded, or the loss penalizes long wrong replies less per token.",
        advice="Read the longest rollouts; give `length` a weight, limit the tokens, or use the loss dr_grpo or dapo.",
        formula="mean of completions/mean_length over 10 steps > length_ceiling × median of steps 5 to 20, and the"
        " reward did not rise in the last 20",
        source="Liu et al. 2025, Understanding R1-Zero-Like Training; rewardspy",
        thresholds=("length_ceiling",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="length_collapse",
        title="Length collapse",
        sentence="Replies become shorter without earning more.",
        cause="Giving up early costs less than trying, or an early end is rewarded.",
        advice="Read the shortest rollouts, check why episodes end, and check the reward of doing nothing.",
        formula="mean of completions/mean_length over 10 steps < length_floor × median of steps 5 to 20, and the"
        " reward did not rise in the last 20",
        source="effort collapse; rewardspy",
        thresholds=("length_floor",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="truncation",
        title="Truncated replies",
        sentence="Many replies are cut off at the token limit.",
        cause="The limit is too small for the task, or the policy has unlearned the end token.",
        advice="Raise the tokens per turn, mask truncated replies from the loss, or roll back if it started suddenly.",
        formula="mean of completions/truncated over 10 steps > truncation_share",
        source="TRL's completions/clipped_ratio; DAPO (Yu et al. 2025), overlong filtering",
        thresholds=("truncation_share",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="divergence",
        title="Divergence from the start",
        sentence="The policy is far from the policy before GRPO.",
        cause="The learning rate is too high, or beta is too small.",
        advice="Check the held-out reward: a large distance alone is not a problem. Lower the rate, or raise beta in a"
        " branch.",
        formula="mean of divergence (k3 estimate; needs grpo.beta > 0) over 10 steps > divergence_limit",
        source="Schulman 2020, approximating KL divergence; TRL's kl",
        thresholds=("divergence_limit",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="importance_ratio",
        title="Importance ratios",
        sentence="The sampled policy differs from the trained one.",
        cause="The sampler and the trainer compute different probabilities (precision, engine or temperature), or too"
        " many updates use the same rollouts.",
        advice="Use the same precision in both, lower the rate, or compute fewer updates per batch.",
        formula="mean of ratio/mean over 10 steps outside [1/importance_ratio_limit, importance_ratio_limit], or mean"
        " of ratio/low_clip + ratio/high_clip > clipped_share",
        source="Schulman et al. 2017, PPO; SkyRL's limits of the mismatch between sampler and trainer",
        thresholds=("importance_ratio_limit", "clipped_share"),
        answers=(_SLOWER,),
    ),
    AlarmKind(
        name="gradient_norm",
        title="Gradient norm",
        sentence="Gradients are much larger than before.",
        cause="A few episodes dominate the step, or the policy is about to break.",
        advice="Lower the rate. Roll back if reward or format fall too.",
        formula="grad_norm > gradient_factor × median of the 50 steps before, in 3 of 5 steps",
        source="gradient clipping practice; the limit is Proctor's",
        thresholds=("gradient_factor",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="not_finite",
        title="Not a number",
        sentence="A loss, a gradient or an entropy is NaN or infinite.",
        cause="The learning rate is too high, or half precision overflowed. The weights are unusable.",
        advice="Lower the rate and resume from the last saved state, or roll back. The broken state is not saved.",
        formula="loss, grad_norm, entropy or divergence is not finite",
        source="arithmetic",
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="failed_rollouts",
        title="Failed rollouts",
        sentence="The infrastructure loses episodes.",
        cause="The environment crashes, times out or is out of capacity. Failed episodes have no reward and teach"
        " nothing. If most fail, the run pauses.",
        advice="Read the failures of the run. Give the environment more servers, time or memory.",
        formula="mean of rollouts/failed ÷ episodes of a step over 5 steps > failed_share",
        source="prime-rl's error share",
        thresholds=("failed_share",),
    ),
    AlarmKind(
        name="format_fall",
        title="Format falls",
        sentence="Fewer replies can be parsed than before.",
        cause="The learning rate is too high: tokens of the reply format drift, slowly at first, until it collapses.",
        advice="Roll back to the best checkpoint with a lower rate. A small beta stabilizes the format.",
        formula="best mean of format over 10 steps − mean of the last 10 > format_drop and > 4 standard errors",
        source="Proctor's study of tic-tac-toe: runs g1, h1, f2, j2",
        thresholds=("format_drop",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="column_fall",
        title="One column falls",
        sentence="A reward column gets worse while the reward does not.",
        cause="The policy trades this column for one that earns more. A penalty that is the same in a whole group gives"
        " no advantage and is not unlearned.",
        advice="Read the rollouts that are low in this column. Give it more weight, or end the episode when it drops.",
        formula="best mean of sign(weight) × columns/<name> over 10 steps − mean of the last 20 > column_drop and > 4"
        " standard errors, while the reward is not below what it was then",
        source="Proctor's study of tic-tac-toe: runs f1, j1, k1; Gao et al. 2022",
        thresholds=("column_drop",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="suspicion",
        title="Suspected reward hacking",
        sentence="A detector suspects that the policy gains reward without doing the task.",
        cause="The reward has a loophole that the policy has found.",
        advice="Read the flagged rollouts in the review queue. If it is a hack, mark it, fix the reward in a new"
        " version, and roll back to before it.",
        formula="a detector gives the run a flag of severity alert (variance has an alarm of its own)",
        source="the detectors of the review queue",
        answers=(_BACK,),
    ),
    AlarmKind(
        name=INTERVENTION,
        title="A detector stepped in",
        sentence="A detector flagged rollouts, and its action pauses or stops this run.",
        cause="A hack, or a false alarm of the detector.",
        advice="Read the flagged rollouts. If they are hacks, mark them, fix the reward in a new version, and roll back"
        " to it. If not, resume the run; the same pattern does not end it again.",
        formula="a flag of a detector whose action is pause or stop_and_roll_back, of a pattern that was not accepted",
        source="the detector settings of the environment and the run",
        answers=(_BACK,),
    ),
    AlarmKind(
        name="heldout_regression",
        title="Held-out regression",
        sentence="The held-out reward is clearly below its best.",
        cause="The policy forgets or overfits. The best checkpoint is kept.",
        advice="Stop and use the best checkpoint, or roll back to it with a lower rate.",
        formula="best − current > heldout_errors × √(error² of best + error² of current), and > 0.02",
        source="two-sample comparison of means; conservative, because the tasks are the same",
        thresholds=("heldout_errors",),
        answers=(_BACK, _SLOWER),
    ),
    AlarmKind(
        name="heldout_gap",
        title="Train/held-out gap",
        sentence="The policy does better on training tasks than on held-out ones.",
        cause="It memorizes the training tasks, or cheats where the tasks allow it.",
        advice="Use more training tasks, and read suspicious rollouts in the review queue.",
        formula="(training reward of the last 10 steps − held-out reward) − (the same at the first evaluation) >"
        " gap_limit and > 2 standard errors, in two evaluations in a row",
        source="Azure Foundry's reinforcement fine-tuning guide: below 0.05 is sound, above 0.10 stop",
        thresholds=("gap_limit",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="warm_up_flat",
        title="The warm-up does not learn",
        sentence="The loss of the warm-up does not fall.",
        cause="The learning rate is too low or far too high, or the training examples have nothing to learn.",
        advice="Try another sft.learning_rate, here or in a separate run (small models need 1e-3 or more), and read the"
        " training examples.",
        formula="after a third of the steps: mean of sft/loss of the last third so far > (1 − warm_up_progress) × the"
        " first",
        source="supervised training practice",
        thresholds=("warm_up_progress",),
        answers=(_SLOWER,),
    ),
    AlarmKind(
        name="stall",
        title="Stalled",
        sentence="The training process makes no progress.",
        cause="An environment hangs, the machine is overloaded or swaps, or the process is stuck.",
        advice="Check the log and the machine. Stop and resume to continue from the last saved state.",
        formula="seconds since progress, rollouts or figures changed > max(stall_factor × median of seconds/step,"
        " stall_seconds)",
        source="heartbeat practice",
        thresholds=("stall_factor", "stall_seconds"),
    ),
    AlarmKind(
        name="out_of_memory",
        title="Out of memory",
        sentence="The training process ran out of memory.",
        cause="The gradient of a micro-batch does not fit: it has too many or too long episodes.",
        advice="Use more grpo.micro_batches (the same result) or hardware.gradient_checkpointing, and resume. One click"
        " does this. If that is not enough, start again with a smaller grpo.group_size, grpo.tasks_per_step or"
        " sft.batch, or fewer tokens per turn.",
        formula="an out-of-memory error in the process, or a kill while the kernel counted an out-of-memory kill",
        source="PyTorch's errors; oom_kill of the control group and of /proc/vmstat",
        answers=(_SMALLER,),
    ),
    AlarmKind(
        name="process_killed",
        title="The process died",
        sentence="The training process ended without an error message.",
        cause="It was killed, or a library crashed.",
        advice="It restarts automatically from the last saved state. If it dies again, read the log.",
        formula="the process ended by a signal",
        source="its exit status",
    ),
)
ALARM_KINDS: Mapping[str, AlarmKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""By name, in display order."""
