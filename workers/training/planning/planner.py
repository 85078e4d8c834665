"""Which groups each GRPO step plays: tasks of all environments by weight, of each by what its levels say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from backend.domain.results.pass_at_k import REWARD, SuccessRule
from backend.domain.rollouts.rollout import Rollout, TaskSpec
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.mix import portions
from workers.rollouts.engine import GroupPlan
from workers.training.planning.levels import AdaptiveLevels, FixedLevels, Levels, Outcome
from workers.training.planning.training_env import TrainingEnv
from workers.training.planning.turns import Turns

HAIR = 1e-6
"""Stored rewards are single precision: what nearly reaches the bar reaches it, here as in a filter."""


@dataclass(slots=True)
class _Lane:
    """One environment of the run: which of its tasks come next."""

    env: TrainingEnv
    levels: Levels
    rule: SuccessRule
    start: int
    """Tasks below this number belong to the warm-up."""
    used: list[int] = field(default_factory=list)
    """Tasks taken so far, by level."""

    def task(self, level: int) -> TaskSpec:
        """The next one of the level; no task comes twice while there are enough."""
        index = self.start + level + self.used[level] * len(self.used)
        self.used[level] += 1
        return self.env.drawn_task(index)

    def is_success(self, rollout: Rollout) -> bool:
        rule = self.rule
        value = rollout.reward if rule.column == REWARD else rollout.columns.get(rule.column)
        return value is not None and value >= rule.at_least - HAIR * max(1.0, abs(rule.at_least))


class Planner:
    """Asked for each step in turn; told the rollouts of each step in turn. `state` is all that it remembers."""

    def __init__(self, envs: Sequence[TrainingEnv], configuration: TrainingConfiguration) -> None:
        self.choice = configuration.grpo
        self.is_adaptive = configuration.curriculum.is_adaptive
        self._lanes = [_lane(env, configuration, start) for env, start in _starts(envs, configuration)]
        self._turns = Turns([env.weight for env in envs])
        self._step = 0
        self._plans: dict[int, GroupPlan] = {}
        """Of the step, by ordinal."""
        self._strata: list[tuple[_Lane, int]] = []
        """Environment and level of each of the step's groups."""

    def plans(self, step: int) -> list[GroupPlan]:
        """The step's groups; the same ones when asked again."""
        if step != self._step:
            self._step, self._plans = step, {}
            lanes = [self._lanes[self._turns.next()] for _ in range(self.choice.tasks_per_step)]
            self._strata = [(lane, lane.levels.next()) for lane in lanes]
            for ordinal in range(self.choice.tasks_per_step):
                self._plans[ordinal] = self._plan(ordinal)
        return [self._plans[ordinal] for ordinal in range(self.choice.tasks_per_step)]

    def plans_of(self, step: int, ordinals: Sequence[int]) -> list[GroupPlan]:
        """The step's groups with these ordinals. An ordinal beyond the step's groups is a fresh task of the environment
        and level of the group that it replaces, the one with the same rest by the number of groups."""
        self.plans(step)
        for ordinal in ordinals:
            if ordinal not in self._plans:
                self._plans[ordinal] = self._plan(ordinal)
        return [self._plans[ordinal] for ordinal in ordinals]

    def learn(self, step: int, rollouts: Iterable[Rollout]) -> dict[str, float]:
        """Take in all that the step played. Returns points of curves: windows of levels, rewards by environment."""
        sound = (each for each in rollouts if each.is_completed and not each.task.is_canary)
        done = sorted(sound, key=lambda each: (each.group, each.member))
        points: dict[str, float] = {}
        for lane in self._lanes:
            own = [rollout for rollout in done if rollout.task.version_id == lane.env.tag]
            rewards = [rollout.reward for rollout in own if rollout.reward is not None]
            if rewards and len(self._lanes) > 1:
                points[f"environment/{lane.env.name}"] = fsum(rewards) / len(rewards)
            found = lane.levels.learn(Outcome(rollout.task.level, lane.is_success(rollout)) for rollout in own)
            points |= {f"curriculum/{lane.env.name}/{name}": value for name, value in found.items()}
        return points

    @property
    def state(self) -> dict[str, Any]:
        """What the next steps follow from, as JSON."""
        lanes = [{"used": list(lane.used), "levels": lane.levels.state} for lane in self._lanes]
        return {"environments": self._turns.credit, "lanes": lanes}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._turns = Turns(self._turns.shares, state["environments"])
        for lane, kept in zip(self._lanes, state["lanes"], strict=True):
            lane.used = list(kept["used"])
            lane.levels.restore(kept["levels"])

    def _plan(self, ordinal: int) -> GroupPlan:
        lane, level = self._strata[ordinal % self.choice.tasks_per_step]
        return GroupPlan(lane.task(level), ordinal, tuple(range(self.choice.group_size)))


def _lane(env: TrainingEnv, configuration: TrainingConfiguration, start: int) -> _Lane:
    count, curriculum = env.manifest.proctor.tasks.levels, configuration.curriculum
    shares = (configuration.grpo.levels or [1.0] * count)[:count]
    levels: Levels = AdaptiveLevels(curriculum, count) if curriculum.is_adaptive else FixedLevels(shares)
    return _Lane(env, levels, curriculum.rule(env.manifest), start + -start % count, [0] * count)


def _starts(envs: Sequence[TrainingEnv], configuration: TrainingConfiguration) -> list[tuple[TrainingEnv, int]]:
    """How many tasks of each environment the warm-up takes."""
    episodes = configuration.sft.episodes if configuration.recipe.has_sft else 0
    return list(zip(envs, portions([env.weight for env in envs], episodes), strict=True))
