"""A little play before a training run: the script's conversations, and what the policy reaches as it is."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
from workers.training.curriculum import Planner
from workers.training.examples import TrainingExample, example_of
from workers.training.teacher import Teacher

TASKS = 32
SCRIPTED_EPISODES = 64
EXAMINED = 32
MOST_SECONDS = 180.0
"""Then what was played has to suffice."""
_HAIR = 1e-6


@dataclass(frozen=True, slots=True)
class Played:
    """Rollouts and how long they took altogether."""

    rollouts: Sequence[Rollout]
    each: Range
    """Seconds of an episode, among the others that were played with it."""
    failure: str = ""
    """Why there are none."""
    lessons: Sequence[TrainingExample] = field(default=())
    """The completed ones as tokens."""

    @property
    def completed(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.is_completed]

    @property
    def sampled_tokens(self) -> float:
        """Mean tokens that the policy wrote in an episode."""
        return sum(sum(lesson.mask) for lesson in self.lessons) / len(self.lessons) if self.lessons else 0.0


def play_script(bench: TrainingContext, chat: ChatTokens) -> Played | None:
    """Conversations of the script that the warm-up would imitate; None where an environment offers none."""
    script = _script_of(bench)
    if script is None:
        return None
    return _play(bench, [bench.warm_up_plans(SCRIPTED_EPISODES)], Teacher(script, chat), chat, "scripted play")


def _script_of(bench: TrainingContext) -> str | None:
    """The chosen one where all environments have it, else one that they share."""
    offered = [set(env.manifest.proctor.scripts) for env in bench.assignment.envs]
    shared = set.intersection(*offered)
    for name in (bench.configuration.sft.script, "teacher", "gold", *sorted(shared)):
        if name in shared:
            return name
    return None


def play_policy(bench: TrainingContext, policy: LocalPolicy) -> Played:
    """The groups that GRPO would play first, as the policy plays before training."""
    plans, size = _first_groups(bench), bench.configuration.grpo.tasks_per_step
    parts = [plans[first : first + size] for first in range(0, len(plans), size)]
    return _play(bench, parts, policy, policy.chat, "the policy before training")


def _first_groups(bench: TrainingContext) -> list[GroupPlan]:
    configuration = bench.configuration
    update: dict[str, Any] = {"tasks_per_step": TASKS}
    if not configuration.recipe.has_grpo:
        update["group_size"] = 2  # only success is asked for
    grpo = configuration.grpo.model_copy(update=update)
    return Planner(bench.assignment.envs, configuration.model_copy(update={"grpo": grpo})).plans(1)


def _play(
    bench: TrainingContext, parts: Sequence[Sequence[GroupPlan]], policy: Policy, chat: ChatTokens, phase: str
) -> Played:
    """One part after the other: a step's episodes are played together and wait for the slowest."""
    rollouts: list[Rollout] = []
    each: list[float] = []
    total = sum(len(plan.members) for plans in parts for plan in plans)
    began = time.monotonic()

    def take(rollout: Rollout) -> None:
        rollouts.append(rollout)
        bench.recorder.progress(phase=phase, done=len(rollouts), total=total)

    failure = ""
    try:
        for plans in parts:
            before, started = len(rollouts), time.monotonic()
            bench.env_pool.play(
                plans,
                policy,
                phase=Phase.CHECK,
                seed=bench.configuration.seed,
                on_rollout=take,
                should_stop=lambda: time.monotonic() - began > MOST_SECONDS,
            )
            each.append((time.monotonic() - started) / max(1, len(rollouts) - before))
    except TooManyFailures as error:
        failure = str(error)
    finally:
        bench.env_pool.close_policy(policy)
    lessons = [example_of(rollout, end=chat.end) for rollout in rollouts if rollout.is_completed]
    return Played(rollouts, Range.of(each) if each else NOTHING, failure, lessons)


def examination_seconds(bench: TrainingContext, policy: LocalPolicy) -> float:
    """Of an episode, played as an examination plays; on training tasks."""
    plans = bench.warm_up_plans(min(EXAMINED, bench.configuration.heldout.tasks))
    bench.recorder.progress(phase="an examination", done=0, total=len(plans))
    began = time.monotonic()
    try:
        bench.env_pool.play_in_lockstep(plans, policy, phase=Phase.CHECK, seed=bench.configuration.seed)
    finally:
        bench.env_pool.close_policy(policy)
    return (time.monotonic() - began) / len(plans)


def successes(env: TrainingEnv, rule: SuccessRule, played: Played) -> list[TaskSuccess]:
    """By task of this environment."""
    groups: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in played.completed:
        if rollout.task.version_id == env.tag:
            groups[rollout.group].append(rollout)
    return [_success(group, rule) for group in groups.values()]


def _success(group: Sequence[Rollout], rule: SuccessRule) -> TaskSuccess:
    values = [rollout.reward if rule.column == REWARD else rollout.columns.get(rule.column) for rollout in group]
    reached = sum(value is not None and value >= rule.at_least - _HAIR for value in values)
    rewards = [rollout.reward or 0.0 for rollout in group]
    return TaskSuccess(group[0].task.level, reached, len(group), max(rewards) - min(rewards) < _HAIR)
