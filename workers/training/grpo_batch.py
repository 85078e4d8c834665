"""One GRPO step as data: its rollouts, the ones to learn from, and their advantages. Nothing here uses TRL.

Credit by turn divides each episode's reward into what its turns earned. A turn's tokens get what was earned from that
turn onward, compared with the group at the same turn:

    G(i,t) = Σ_{u ≥ t} r(i,u)        A(i,t) = (G(i,t) − mean over members k that reached t of G(k,t)) / s

with s = 1, or the standard deviation of the episodes' rewards in the group or the step, by `scale_rewards`. This is the
process supervision of DeepSeekMath (arXiv 2402.03300, §4.1.3: a token gets the normalized rewards of all later steps)
with one baseline per turn instead of one for all step rewards: the length of an episode is neither rewarded nor
punished. Turn-level credit for agents: arXiv 2505.11821. The first turn's advantage is the episode's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from backend.domain.environments.manifest import OverEpisode, RewardColumn
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import VllmChoice
from backend.domain.training.grpo import GrpoChoice
from workers.models.policy import LocalPolicy
from workers.training.ahead import SampleAhead
from workers.training.examples import BrokenStep, examples_of_step
from workers.training.ranks import PlayPlans, StageRun, leader_only

REPLACED = "grpo_replaced"
"""Metric of a rollout whose group was replaced by a fresh one: it was played but not learned from."""
MASKED = "grpo_masked"
"""Metric of a rollout excluded from its group: judged a hack or broken reward, flagged, or a canary."""
SCREENED = "grpo_screened"
"""Metric of a masked rollout that was not reviewed yet: a detector with the action `screen` flagged it."""
EQUAL_DIGITS = 6  # rewards are equal if they agree to this many digits: the rest is rounding
STEP_PARTS = ("rollouts", "reward", "forward", "backward", "optimiser", "other")
"""Timed parts of a step. The last is padding, and states that were saved before the step."""
TINY = 1e-4  # added to a standard deviation before dividing, as in TRL

Play = Callable[[int, Sequence[int]], list[Rollout]]
"""(training step from 1, ordinals of groups) → all members of each group, in order. Ordinals beyond the step's groups
are fresh tasks: number `n` of a round of replacements replaces group `n mod tasks_per_step`."""
Masked = Callable[[Sequence[Rollout]], set[int]]  # positions of a step's rollouts that must not be learned from
Screened = Callable[[int, Sequence[Rollout]], set[int]]
"""(training step, rollouts) → positions that are masked until someone reviews them."""
ColumnsFor = Callable[[Rollout], Sequence[RewardColumn]]


@dataclass(slots=True)
class GrpoControls:
    """Settings that may change between steps. A resumed run must set them to what they were."""

    learning_rate_factor: float = 1.0
    """Factor of the scheduled learning rate. The schedule itself continues as planned."""
    temperature: float | None = None  # replaces the planned temperature


@dataclass(slots=True)
class GrpoStep:
    """One training step, after it was taken."""

    step: int
    rollouts: list[Rollout]  # all rollouts with their advantages: those learned from in order, then replaced ones
    figures: dict[str, float]
    """Points of its curves:

    - `loss`, `grad_norm`, `entropy`, `temperature`, `lr_factor`; `learning_rate` is the scheduled one times the factor
    - `divergence` from the policy before GRPO, if `beta` is above 0
    - `groups/no_variance`: share of groups whose rewards are all equal, which teach nothing
    - `ratio/mean`, `ratio/max`: probability of tokens in training divided by their probability when sampled
    - `ratio/low_clip`, `ratio/high_clip`: share of tokens that teach nothing because of their ratio, if the loss clips
    - `ratio/truncated`: share of tokens whose importance weight was limited, if sampling runs ahead
    - `staleness`, `ahead/overlap`, `ahead/seconds`, `ahead/tokens_per_second`: of sampling ahead
    """
    seconds: Mapping[str, float]  # by part; `idle`: bookkeeping and waiting for other processes; and `step` in all


@dataclass(slots=True, kw_only=True)
class GrpoRun(StageRun):
    choice: GrpoChoice
    columns: Sequence[RewardColumn]  # reward columns of all environments
    play: Play = leader_only  # plays with all ranks
    on_step: Callable[[GrpoStep], bool] = leader_only  # returns whether to continue
    masked: Masked = lambda _: set()
    screened: Screened = lambda *_: set()
    controls: GrpoControls = field(default_factory=GrpoControls)
    policy: LocalPolicy | None = None  # samples at the temperature of the step, and with vLLM if the run uses it
    columns_of: ColumnsFor | None = None
    """Mixes only: columns of the rollout's own environment, whose weights make its reward."""
    vllm: VllmChoice | None = None  # samples with vLLM, which TRL starts or updates
    sync_sampler: Callable[[], None] = lambda: None  # leader only; called before each step's rollouts
    ahead: SampleAhead | None = None  # plays batches ahead; `play` then takes them from it
    score: Callable[[Sequence[Rollout]], list[list[float]]] | None = None
    """Distillation only: advantages by token from a teacher, in place of those from rewards. Leader only."""
    longest_completion: int = 256  # scale of the `dr_grpo` loss only
    play_plans: PlayPlans = leader_only  # plays what the leader assigns to this rank

    def columns_for(self, rollout: Rollout) -> Sequence[RewardColumn]:
        return self.columns if self.columns_of is None else self.columns_of(rollout)

    def signature(self, rollout: Rollout) -> tuple[float, ...]:
        """Return the values that must differ within a group for it to teach something."""
        columns = self.columns_for(rollout)
        values: Sequence[float] = [rollout.reward or 0.0]
        if self.choice.credit == "turn":
            values = contributions(rollout, columns)
        elif self.choice.aggregation == "normalize_then_sum":
            values = [column.weight * rollout.columns.get(column.name, 0.0) for column in columns]
        return tuple(round(value, EQUAL_DIGITS) for value in values)


@dataclass(slots=True)
class PlayedBatch:
    groups: list[int]
    rollouts: list[Rollout]
    masked: set[int] = field(default_factory=set)  # positions of rollouts excluded from their groups
    screened: set[int] = field(default_factory=set)
    replaced: list[Rollout] = field(default_factory=list)
    no_variance: float = 0.0


def play_batch(run: GrpoRun, step: int) -> PlayedBatch:
    """Play the step's groups, and replace groups without variance for up to `replace_uniform` rounds."""
    count, size = run.choice.tasks_per_step, run.choice.group_size
    batch = PlayedBatch(list(range(count)), run.play(step, range(count)))
    for turn in range(1, run.choice.replace_uniform + 2):
        judged = run.masked(batch.rollouts)
        batch.screened = run.screened(step, batch.rollouts) - judged
        canaries = {place for place, rollout in enumerate(batch.rollouts) if rollout.task.is_canary}
        batch.masked = judged | batch.screened | canaries
        uniform = []  # groups, by position, in which fewer than two counted members differ
        for number in range(count):
            places = range(number * size, min((number + 1) * size, len(batch.rollouts)))
            members = [batch.rollouts[place] for place in places if place not in batch.masked]
            if len({run.signature(rollout) for rollout in members if rollout.is_completed}) < 2:
                uniform.append(number)
        if not uniform or turn > run.choice.replace_uniform:
            break
        ordinals = [turn * count + number for number in uniform]
        fresh = run.play(step, ordinals)
        for index, number in enumerate(uniform):
            part = slice(number * size, (number + 1) * size)
            batch.replaced += batch.rollouts[part]
            batch.rollouts[part] = fresh[index * size : (index + 1) * size]
            batch.groups[number] = ordinals[index]
    batch.no_variance = len(uniform) / count
    for place in batch.masked:
        batch.rollouts[place].metrics[MASKED] = 1.0
    for place in batch.screened:
        batch.rollouts[place].metrics[SCREENED] = 1.0
    for rollout in batch.replaced:
        rollout.metrics[REPLACED] = 1.0
    return batch


def rows_of(run: GrpoRun, batch: PlayedBatch) -> dict[str, Any]:
    """Return lists under TRL's names, with one item per rollout in the order of the prompts.

    `values` are the reward columns, which TRL weights; None excludes a failed or masked rollout from its group.
    `token_advantages` is None if TRL's own advantages are used.
    """
    choice, rollouts = run.choice, batch.rollouts
    silent = set(batch.masked)
    if choice.mask_truncated:
        silent |= {place for place, rollout in enumerate(rollouts) if rollout.is_truncated}
    examples = examples_of_step(
        rollouts, groups=batch.groups, group_size=choice.group_size, end=run.tokenizer.eos_token_id, silent=silent
    )
    values: list[dict[str, float] | None] = []
    for place, rollout in enumerate(rollouts):
        if not rollout.is_completed or place in batch.masked:
            values.append(None)
        elif run.columns_of is None:
            values.append(rollout.columns)
        else:  # in a mix, columns are weighted here, by the rollout's environment
            values.append({each.name: each.weight * rollout.columns[each.name] for each in run.columns_of(rollout)})
    advantages = None
    if run.score is not None:
        advantages = run.score(rollouts)
    elif choice.credit != "episode":
        size, scale = choice.group_size, choice.scale_rewards
        credit_turns(rollouts, batch.masked, size=size, columns_for=run.columns_for, scale=scale)
        advantages = [token_advantages(rollout) for rollout in rollouts]
    return {
        "prompt_ids": [example.prompt for example in examples],
        "completion_ids": [example.completion for example in examples],
        "env_mask": [example.mask for example in examples],
        "logprobs": [rollout.logprobs if rollout.is_completed else [0.0] for rollout in rollouts],
        "values": values,
        "token_advantages": advantages,
    }


def contributions(rollout: Rollout, columns: Sequence[RewardColumn]) -> list[float]:
    """Divide the weighted reward among the turns. The last turn gets what no turn earned, such as a length penalty."""
    steps = rollout.steps
    earned = [0.0] * max(1, len(steps))
    for column in columns:
        if column.name == "format":
            for turn, step in enumerate(steps):
                earned[turn] += column.weight * ((step.action is not None) / len(steps))
            continue
        sent = [(turn, step.rewards[column.name]) for turn, step in enumerate(steps) if column.name in step.rewards]
        if column.over_episode is OverEpisode.LAST:
            sent = sent[-1:]
        before = 0.0
        for turn, value in sent:
            if column.over_episode is OverEpisode.MAX:
                highest = value if turn == sent[0][0] else max(before, value)
                earned[turn] += column.weight * (highest - before)
                before = highest
            else:
                earned[turn] += column.weight * value
    earned[-1] += (rollout.reward or 0.0) - math.fsum(earned)
    return earned


def turns_of_tokens(mask: Sequence[int]) -> list[int]:
    """Return the turn of each of the policy's tokens, from 0, and -1 for tokens of the environment."""
    turns, turn, was_policy = [], -1, False
    for counts in mask:
        if counts and not was_policy:
            turn += 1
        turns.append(turn if counts else -1)
        was_policy = bool(counts)
    return turns


def token_advantages(rollout: Rollout) -> list[float]:
    """Return one advantage per token of the completion, or none if the rollout does not count."""
    if rollout.turn_advantages is None:
        return []
    turns = turns_of_tokens(rollout.completion_mask or [])
    return [rollout.turn_advantages[turn] if turn >= 0 else 0.0 for turn in turns]


def rewards_to_go(rollout: Rollout, columns: Sequence[RewardColumn], turns: int) -> list[float]:
    """Return what was earned from each turn onward. Steps without tokens (full context) belong to the last turn."""
    earned = contributions(rollout, columns)
    if len(earned) < turns:
        raise BrokenStep(
            f"rollout {rollout.group}/{rollout.member} has tokens of {turns} turns, but {len(earned)} steps"
        )
    earned = [*earned[: turns - 1], math.fsum(earned[turns - 1 :])]
    return list(accumulate(reversed(earned)))[::-1]


def sample_deviation(rewards: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None for fewer than two values."""
    if len(rewards) < 2:
        return None
    mean = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def credit_turns(
    rollouts: Sequence[Rollout], masked: set[int], *, size: int, columns_for: ColumnsFor, scale: str
) -> None:
    """Set the advantages by turn of all counted rollouts, which are consecutive groups of `size`."""
    gains: list[list[float]] = []
    for place, rollout in enumerate(rollouts):
        if rollout.is_completed and place not in masked:
            turns = max(turns_of_tokens(rollout.completion_mask or [])) + 1
            gains.append(rewards_to_go(rollout, columns_for(rollout), turns))
        else:
            gains.append([])
    overall = sample_deviation([gain[0] for gain in gains if gain])
    for first in range(0, len(rollouts), size):
        group = gains[first : first + size]
        spread = {"group": sample_deviation([gain[0] for gain in group if gain]), "batch": overall}.get(scale)
        divisor = 1.0 if spread is None else spread + TINY
        means = []
        for turn in range(max(map(len, group), default=0)):
            reached = [gain[turn] for gain in group if len(gain) > turn]
            means.append(math.fsum(reached) / len(reached))
        for rollout, gain in zip(rollouts[first:], group, strict=False):
            advantages = [(value - mean) / divisor for value, mean in zip(gain, means, strict=False)]
            rollout.turn_advantages = advantages or None
