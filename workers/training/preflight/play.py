"""Play a few episodes before a training run: the scripted policy's conversations, and the success of the policy."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.preflight.measured import NOTHING, Range, TaskSuccess
from backend.domain.vocabulary import Phase
from workers.models.chat import ChatTokens
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, TooManyFailures
from workers.training.assignment import TrainingEnv
from workers.training.context import TrainingContext
from workers.training.curriculum import warm_up_plans
from workers.training.examples import TrainingExample, example_of
from workers.training.hardware import Hardware

EVALUATED = 32
MAX_SECONDS = 180.0  # then the episodes so far must suffice
_EPSILON = 1e-6


@dataclass(slots=True)
class InitialPolicy:
    """The policy as training would start it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: ChatTokens
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    rollouts: Sequence[Rollout]
    seconds: Range  # of one episode, played together with others
    failure: str  # why there are none
    examples: Sequence[TrainingExample]  # the completed ones as tokens

    @property
    def completed(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.is_completed]

    @property
    def sampled_tokens(self) -> float:
        """Mean number of tokens that the policy wrote in an episode."""
        return sum(sum(each.mask) for each in self.examples) / len(self.examples) if self.examples else 0.0


def play_episodes(
    context: TrainingContext, parts: Sequence[Sequence[GroupPlan]], policy: Policy, chat: ChatTokens, phase: str
) -> PlayedEpisodes:
    """Play part after part, as training does: the episodes of a step run together and wait for the slowest."""
    rollouts: list[Rollout] = []
    seconds: list[float] = []
    total = sum(len(plan.members) for plans in parts for plan in plans)
    began = time.monotonic()

    def record(rollout: Rollout) -> None:
        rollouts.append(rollout)
        context.recorder.progress(phase=phase, done=len(rollouts), total=total)

    failure = ""
    try:
        for plans in parts:
            before, started = len(rollouts), time.monotonic()
            context.env_pool.play(
                plans,
                policy,
                phase=Phase.CHECK,
                seed=context.configuration.seed,
                on_rollout=record,
                should_stop=lambda: time.monotonic() - began > MAX_SECONDS,
            )
            seconds.append((time.monotonic() - started) / max(1, len(rollouts) - before))
    except TooManyFailures as error:
        failure = str(error)
    finally:
        context.env_pool.close_policy(policy)
    examples = [example_of(rollout, end=chat.end) for rollout in rollouts if rollout.is_completed]
    return PlayedEpisodes(rollouts, Range.of(seconds) if seconds else NOTHING, failure, examples)


def evaluation_seconds(context: TrainingContext, initial: InitialPolicy) -> float:
    """Seconds per episode of a held-out evaluation, measured on training tasks."""
    heldout = context.configuration.heldout
    is_bf16, temperature = initial.hardware.is_bf16, heldout.temperature
    policy = LocalPolicy(initial.model, initial.tokenizer, temperature=temperature, lockstep=True, is_bf16=is_bf16)
    plans = warm_up_plans(context.assignment.envs, min(EVALUATED, heldout.tasks))
    context.recorder.progress(phase="measuring a held-out evaluation", done=0, total=len(plans))
    began = time.monotonic()
    try:
        context.env_pool.play_in_lockstep(plans, policy, phase=Phase.CHECK, seed=context.configuration.seed)
    finally:
        context.env_pool.close_policy(policy)
    return (time.monotonic() - began) / len(plans)


def successes(env: TrainingEnv, rule: SuccessRule, played: PlayedEpisodes) -> list[TaskSuccess]:
    """How often each task of this environment succeeded."""
    groups: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in played.completed:
        if rollout.task.version_id == env.tag:
            groups[rollout.group].append(rollout)
    tasks = []
    for group in groups.values():
        values = [rollout.reward if rule.column == REWARD else rollout.columns.get(rule.column) for rollout in group]
        succeeded = sum(value is not None and value >= rule.at_least - _EPSILON for value in values)
        rewards = [rollout.reward or 0.0 for rollout in group]
        is_uniform = max(rewards) - min(rewards) < _EPSILON
        tasks.append(TaskSuccess(group[0].task.level, succeeded, len(group), is_uniform))
    return tasks
