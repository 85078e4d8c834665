"""The examination: fixed held-out tasks, played once each, as figures with intervals."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.domain.results.pass_at_k import REWARD, default_rule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import TIE, Estimate, estimate_mean, weighted_mean
from workers.training.planning.training_env import TrainingEnv

NORMAL_95 = 1.96
"""Standard errors from a mean to the end of its 95 % interval."""


@dataclass(frozen=True, slots=True)
class HeldoutEvaluation:
    """What a policy reached on the held-out tasks."""

    reward: Estimate | None
    """Over several environments the mean by their weights. None when every rollout of one failed."""
    columns: dict[str, Estimate]
    """Each over the rollouts whose environment has it."""
    levels: dict[int, Estimate]
    """Reward by level; only of a single environment, because a level says nothing across several."""
    environments: dict[str, Estimate]
    """Reward by environment, where there are several."""
    format: float
    """Mean share of turns that could be parsed."""
    failed: int
    success: Estimate | None = None
    """Share that succeeded, by each environment's own rule. None where no environment was named."""
    environment_levels: dict[str, dict[int, Estimate]] = field(default_factory=dict)
    """Reward by each environment's own levels, where there are several environments."""
    environment_successes: dict[str, Estimate] = field(default_factory=dict)
    """Success by environment, where there are several."""

    def as_json(self) -> dict[str, Any]:
        return {
            "reward": asdict(self.reward) if self.reward else None,
            "columns": {name: asdict(value) for name, value in self.columns.items()},
            "levels": _by_level(self.levels),
            "environments": {name: asdict(value) for name, value in self.environments.items()},
            "environment_levels": {name: _by_level(each) for name, each in self.environment_levels.items()},
            "environment_successes": {name: asdict(value) for name, value in self.environment_successes.items()},
            "format": self.format,
            "failed": self.failed,
            "success": asdict(self.success) if self.success else None,
        }

    def metrics(self) -> dict[str, float]:
        """Points of the curves `heldout/…`."""
        if self.reward is None:
            return {}
        return {
            "heldout/reward": self.reward.mean,
            "heldout/reward_error": (self.reward.high - self.reward.low) / (2 * NORMAL_95),
            "heldout/format": self.format,
            **({"heldout/success": self.success.mean} if self.success else {}),
            **{f"heldout/columns/{name}": value.mean for name, value in self.columns.items()},
            **{f"heldout/level/{level}": value.mean for level, value in self.levels.items()},
            **{f"heldout/environment/{name}": value.mean for name, value in self.environments.items()},
            **{
                f"heldout/environment_level/{name}/{level}": value.mean
                for name, levels in self.environment_levels.items()
                for level, value in levels.items()
            },
        }


def summarise(
    rollouts: Sequence[Rollout], columns: Iterable[str], envs: Sequence[TrainingEnv] = ()
) -> HeldoutEvaluation:
    """Figures over the completed rollouts; a failed one is no zero. `envs`: the environments, where several."""
    completed = [rollout for rollout in rollouts if rollout.is_completed]
    is_mixed = len(envs) > 1
    formats = [mean_format(rollout) for rollout in completed]
    own = {env.name: rollouts_of(env, completed) for env in envs} if is_mixed else {}
    return HeldoutEvaluation(
        reward=weighted_mean([(env.weight, rewards_of(env, completed)) for env in envs])
        if is_mixed
        else _mean_reward(completed),
        columns=_present({n: estimate_mean([r.columns[n] for r in completed if n in r.columns]) for n in columns}),
        levels={} if is_mixed else _levels(completed),
        environments=_present({name: _mean_reward(each) for name, each in own.items()}),
        format=sum(formats) / len(formats) if formats else 0.0,
        failed=len(rollouts) - len(completed),
        success=_success(envs, completed),
        environment_levels={name: _levels(each) for name, each in own.items() if each},
        environment_successes=_present({v.name: _success([v], own[v.name]) for v in envs}) if is_mixed else {},
    )


def _levels(completed: Sequence[Rollout]) -> dict[int, Estimate]:
    """Reward by level."""
    levels = sorted({rollout.task.level for rollout in completed})
    return _present({n: _mean_reward([each for each in completed if each.task.level == n]) for n in levels})


def _success(envs: Iterable[TrainingEnv], completed: Sequence[Rollout]) -> Estimate | None:
    return estimate_mean([float(outcome) for outcome in _successes(envs, completed)])


def _successes(envs: Iterable[TrainingEnv], completed: Sequence[Rollout]) -> Iterator[bool]:
    """Did each rollout succeed, as its environment's manifest says?"""
    for env in envs:
        rule = default_rule(env.manifest)
        for rollout in rollouts_of(env, completed):
            if rollout.reward is not None:
                reached = rollout.reward if rule.column == REWARD else rollout.columns.get(rule.column, -math.inf)
                yield reached >= rule.at_least - TIE


def rollouts_of(env: TrainingEnv, rollouts: Iterable[Rollout]) -> list[Rollout]:
    """The environment's own."""
    return [rollout for rollout in rollouts if rollout.task.version_id == env.tag]


def rewards_of(env: TrainingEnv, completed: Iterable[Rollout]) -> list[float]:
    """Of the environment's own rollouts."""
    return [each.reward for each in rollouts_of(env, completed) if each.reward is not None]


def mean_format(rollout: Rollout) -> float:
    """Share of an episode's turns that could be parsed: a reward column or, where it carries no weight, a metric."""
    return rollout.columns.get("format", rollout.metrics.get("format", 0.0))


def _mean_reward(completed: Sequence[Rollout]) -> Estimate | None:
    return estimate_mean([rollout.reward for rollout in completed if rollout.reward is not None])


def _by_level(levels: Mapping[int, Estimate]) -> dict[str, Any]:
    return {str(level): asdict(value) for level, value in levels.items()}


def _present(estimates: dict[Any, Estimate | None]) -> dict[Any, Estimate]:
    return {key: value for key, value in estimates.items() if value is not None}
