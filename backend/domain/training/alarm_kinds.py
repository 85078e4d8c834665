"""The alarms in words: what each one means, what usually causes it, what helps, and how it is computed."""

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
    """What is seen."""
    cause: str
    """What it usually means."""
    advice: str
    """What to do."""
    formula: str
    source: str
    thresholds: tuple[str, ...] = ()
    """Names in `AlarmsChoice`."""
    answers: tuple[AlarmAnswer, ...] = ()
    """What helps and can be done by one click, the likeliest first. Pausing, stopping and dismissing always can."""

    def limits(self, choice: AlarmsChoice) -> dict[str, float]:
        """Its thresholds as this run has them."""
        return {name: getattr(choice, name) for name in self.thresholds}


_KINDS = (
    AlarmKind(
        name="no_variance",
        title="Groups without variance",
        sentence="Most groups earn the same in all their episodes.",
        cause="The tasks are too easy or too hard for the policy, or the reward does not see the difference. Such a"
        " group has no advantage and moves nothing.",
        advice="Change the mix of levels, enlarge the groups, or let groups without variance be replaced.",
        formula="mean of groups/no_variance over 10 steps > no_variance_share",
        source="TRL's frac_reward_zero_std; limits as in prime-rl and tinker-cookbook",
        thresholds=("no_variance_share",),
    ),
    AlarmKind(
        name="entropy_collapse",
        title="Entropy collapse",
        sentence="The policy has nearly stopped trying anything else.",
        cause="The learning rate is too high for so little variety, or the same few replies are rewarded again and"
        " again. What is not sampled any more cannot be learned.",
        advice="Lower the rate, sample at a higher temperature, or raise beta; go back to an earlier checkpoint.",
        formula="mean of entropy over 10 steps < entropy_floor × median of steps 5 to 20",
        source="PPO and GRPO practice: entropy against its own beginning",
        thresholds=("entropy_floor",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="entropy_explosion",
        title="Entropy explosion",
        sentence="The policy's tokens become random.",
        cause="An entropy bonus, a high temperature or a rate that is too high pushes probability onto tokens that mean"
        " nothing; the format usually falls next.",
        advice="Take the entropy bonus away, lower the rate, and roll back to before the rise.",
        formula="mean of entropy over 10 steps > entropy_ceiling × median of steps 5 to 20",
        source="Proctor's study of tic-tac-toe (an entropy bonus of 0.01 did it)",
        thresholds=("entropy_ceiling",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="length_growth",
        title="Length blow-up",
        sentence="Replies become longer without earning more.",
        cause="Length itself is rewarded somewhere, or the loss lets long wrong replies cost less for each token.",
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
        sentence="Replies become short without earning more.",
        cause="Giving up early costs less than trying, or an early end is rewarded.",
        advice="Read the shortest rollouts and look at what ends an episode; check the reward of doing nothing.",
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
        cause="The policy does not end its turn: the limit is too small for the task, or the end token was unlearned.",
        advice="Raise the tokens a turn, mask truncated replies from the loss, or roll back if it began suddenly.",
        formula="mean of completions/truncated over 10 steps > truncation_share",
        source="TRL's completions/clipped_ratio; DAPO (Yu et al. 2025), overlong filtering",
        thresholds=("truncation_share",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="divergence",
        title="Divergence from the start",
        sentence="The policy is far from what it was before GRPO.",
        cause="The rate is too high, or beta is too small to hold the policy.",
        advice="Lower the rate or raise beta in a branch. Far is not bad in itself: look at the held-out reward.",
        formula="mean of divergence (k3 estimate; needs grpo.beta > 0) over 10 steps > divergence_limit",
        source="Schulman 2020, approximating KL divergence; TRL's kl",
        thresholds=("divergence_limit",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="importance_ratio",
        title="Importance ratios",
        sentence="What is trained is no longer what played.",
        cause="The sampler and the trainer compute different probabilities (another precision or engine, another"
        " temperature), or too many updates use the same rollouts.",
        advice="Use the same precision in both, lower the rate, or compute fewer updates from each batch.",
        formula="mean of ratio/mean over 10 steps outside [1/importance_ratio_limit, importance_ratio_limit], or mean"
        " of ratio/low_clip + ratio/high_clip > clipped_share",
        source="Schulman et al. 2017, PPO; SkyRL's limits of the mismatch between sampler and trainer",
        thresholds=("importance_ratio_limit", "clipped_share"),
        answers=(_SLOWER,),
    ),
    AlarmKind(
        name="gradient_norm",
        title="Gradient norm",
        sentence="Gradients are much longer than they used to be.",
        cause="A few episodes dominate the step, or the policy is about to break.",
        advice="Lower the rate; if reward or format fall too, roll back.",
        formula="grad_norm > gradient_factor × median of the 50 steps before, in 3 of 5 steps",
        source="gradient clipping practice; the limit is Proctor's",
        thresholds=("gradient_factor",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="not_finite",
        title="Not a number",
        sentence="A loss, a gradient or an entropy is NaN or infinite.",
        cause="The weights are spoiled: the rate is too high, or half precision overflowed.",
        advice="The state after it is not saved. Lower the rate and resume from the last saved state, or roll back.",
        formula="loss, grad_norm, entropy or divergence is not finite",
        source="arithmetic",
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="failed_rollouts",
        title="Failed rollouts",
        sentence="The infrastructure loses episodes.",
        cause="The environment crashes, times out or is out of capacity. Failed episodes have no reward and teach"
        " nothing; when most fail, the run pauses.",
        advice="Read the failures of the run; give the environment more servers, time or memory.",
        formula="mean of rollouts/failed ÷ episodes of a step over 5 steps > failed_share",
        source="prime-rl's error share",
        thresholds=("failed_share",),
    ),
    AlarmKind(
        name="format_fall",
        title="Format falls",
        sentence="Replies that could be read before can be read no longer.",
        cause="The rate is too high: tokens of the reply's frame drift. It begins slowly and ends in collapse.",
        advice="Roll back to the best checkpoint with a lower rate; a little beta holds the format.",
        formula="best mean of format over 10 steps − mean of the last 10 > format_drop and > 4 standard errors",
        source="Proctor's study of tic-tac-toe: runs g1, h1, f2, j2",
        thresholds=("format_drop",),
        answers=(_SLOWER, _BACK),
    ),
    AlarmKind(
        name="column_fall",
        title="One column falls",
        sentence="A reward column gets worse while the reward does not.",
        cause="The policy trades what matters less in the sum for what pays. A penalty that is the same in a whole"
        " group gives no advantage and is not unlearned.",
        advice="Read the rollouts that are low in this column; give it more weight, or end the episode where it"
        " happens.",
        formula="best mean of sign(weight) × columns/<name> over 10 steps − mean of the last 20 > column_drop and > 4"
        " standard errors, while the reward is not below what it was then",
        source="Proctor's study of tic-tac-toe: runs f1, j1, k1; Gao et al. 2022",
        thresholds=("column_drop",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="suspicion",
        title="Suspected reward hacking",
        sentence="A detector suspects that the reward is gained without doing the task.",
        cause="The reward can be had more cheaply than its author meant, and the policy has found out how.",
        advice="Read the flagged rollouts in the review queue. What is a hack: mark it, repair the reward in a new"
        " version, and roll back to before it.",
        formula="a detector gives the run a flag of severity alert (variance has an alarm of its own)",
        source="the detectors of the review queue",
        answers=(_BACK,),
    ),
    AlarmKind(
        name=INTERVENTION,
        title="A detector stepped in",
        sentence="A detector flagged what this run pauses or stops for.",
        cause="The policy does what the detector looks for. It may be a hack or a false alarm: the rollouts tell.",
        advice="Read the flagged rollouts. A hack: mark it, repair the reward in a new version, and roll back onto it."
        " A false alarm: resume the run; the same pattern does not end it again.",
        formula="a flag of a detector whose action is pause or stop_and_roll_back, of a pattern that nobody let pass",
        source="the settings of the detectors and the run's choices `detectors`",
        answers=(_BACK,),
    ),
    AlarmKind(
        name="heldout_regression",
        title="Held-out regression",
        sentence="The held-out reward is clearly below its best.",
        cause="The policy forgets, or is over its best. The best checkpoint is kept.",
        advice="Stop and use the best checkpoint, or roll back to it with a lower rate.",
        formula="best − current > heldout_errors × √(error² of best + error² of current), and > 0.02",
        source="two-sample comparison of means; conservative, because the tasks are the same",
        thresholds=("heldout_errors",),
        answers=(_BACK, _SLOWER),
    ),
    AlarmKind(
        name="heldout_gap",
        title="Train/held-out gap",
        sentence="The policy does better on what it trains on than on what it has never seen.",
        cause="It learns the training tasks by heart, or cheats where the tasks allow it.",
        advice="Use more training tasks; read the review queue for what is suspicious.",
        formula="(training reward of the last 10 steps − held-out reward) − (the same at the first examination) >"
        " gap_limit and > 2 standard errors, at two examinations in a row",
        source="Azure Foundry's reinforcement fine-tuning guide: below 0.05 is sound, above 0.10 stop",
        thresholds=("gap_limit",),
        answers=(_BACK,),
    ),
    AlarmKind(
        name="warm_up_flat",
        title="The warm-up does not learn",
        sentence="The loss of the warm-up does not fall.",
        cause="The rate is too low or far too high, or the lessons hold nothing that could be learned.",
        advice="Try another sft.learning_rate, here or in a run of its own (small models want 1e-3 and more); read the"
        " lessons.",
        formula="after a third of the steps: mean of sft/loss of the last third so far > (1 − warm_up_progress) × the"
        " first",
        source="supervised training practice",
        thresholds=("warm_up_progress",),
        answers=(_SLOWER,),
    ),
    AlarmKind(
        name="stall",
        title="Stalled",
        sentence="The training process has given no sign of life.",
        cause="An environment hangs, the machine is overloaded or swaps, or the process is stuck.",
        advice="Look at the log and at the machine; stop and resume, which goes on from the last saved state.",
        formula="seconds since progress, rollouts or figures changed > max(stall_factor × median of seconds/step,"
        " stall_seconds)",
        source="heartbeat practice",
        thresholds=("stall_factor", "stall_seconds"),
    ),
    AlarmKind(
        name="out_of_memory",
        title="Out of memory",
        sentence="The training process ran out of memory.",
        cause="A step's gradient needs more memory than there is: too many or too long episodes in one part.",
        advice="Compute a step in more parts (grpo.micro_batches: the same result) or activations twice"
        " (hardware.gradient_checkpointing) and resume: one click does both. Where that is not enough, start again with"
        " a smaller grpo.group_size, grpo.tasks_per_step, sft.batch or fewer tokens a turn.",
        formula="an out-of-memory error in the process, or a kill while the kernel counted an out-of-memory kill",
        source="PyTorch's errors; oom_kill of the control group and of /proc/vmstat",
        answers=(_SMALLER,),
    ),
    AlarmKind(
        name="process_killed",
        title="The process died",
        sentence="The training process ended without a word.",
        cause="Somebody or something killed it, or a library crashed.",
        advice="Nothing: it is started again and goes on from the last saved state. If it repeats, read the log.",
        formula="the process ended by a signal",
        source="its exit status",
    ),
)
ALARM_KINDS: Mapping[str, AlarmKind] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""By name, in the order in which they are shown."""
