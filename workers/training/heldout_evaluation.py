"""Results of a held-out evaluation: fixed tasks, one rollout each, with confidence intervals."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from backend.domain.results.pass_at_k import default_rule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import Estimate, estimate_mean, weighted_mean
from workers.training.assignment import TrainingEnv

NORMAL_95 = 1.96  # standard errors from a mean to the end of its 95% interval
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class HeldoutEvaluation:
    reward: Estimate | None
    """With several environments, the mean by their weights. None if every rollout of one failed."""
    columns: dict[str, Estimate]  # each column over the rollouts whose environment has it
    levels: dict[int, Estimate]
    """Reward by level. Single environments only: levels of different environments are not comparable."""
    environments: dict[str, Estimate]
    format: float
    failed: int
    success: Estimate | None = None
    """Share of tasks solved, by each environment's success rule. None without an environment."""
    environment_levels: dict[str, dict[int, Estimate]] = field(default_factory=dict)
    """Reward by level of each environment, if there are several."""
    environment_successes: dict[str, Estimate] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return the points of the curves `heldout/…`."""
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


def summarize(
    rollouts: Sequence[Rollout], columns: Iterable[str], envs: Sequence[TrainingEnv] = ()
) -> HeldoutEvaluation:
    completed = [rollout for rollout in rollouts if rollout.is_completed]
    of_env = {env.name: [each for each in completed if each.task.version_id == env.tag] for env in envs}
    is_mixed = len(envs) > 1
    own = of_env if is_mixed else {}
    formats = [mean_format(rollout) for rollout in completed]
    reward = estimate_mean(rewards_of(completed))
    if is_mixed:
        reward = weighted_mean([(env.weight, rewards_of(of_env[env.name])) for env in envs])
    successes: dict[str, list[float]] = {}
    for env in envs:
        rule, rewarded = default_rule(env.manifest), [each for each in of_env[env.name] if each.reward is not None]
        successes[env.name] = [float(rule.is_met(each.reward, each.columns)) for each in rewarded]
    return HeldoutEvaluation(
        reward=reward,
        columns=_means({name: [each.columns[name] for each in completed if name in each.columns] for name in columns}),
        levels={} if is_mixed else _levels(completed),
        environments=_means({name: rewards_of(rollouts) for name, rollouts in own.items()}),
        format=sum(formats) / len(formats) if formats else 0.0,
        failed=len(rollouts) - len(completed),
        success=estimate_mean([success for own_successes in successes.values() for success in own_successes]),
        environment_levels={name: _levels(rollouts) for name, rollouts in own.items() if rollouts},
        environment_successes=_means({name: successes[name] for name in own}),
    )


def _levels(completed: Sequence[Rollout]) -> dict[int, Estimate]:
    levels = sorted({rollout.task.level for rollout in completed})
    return _means({level: rewards_of(each for each in completed if each.task.level == level) for level in levels})


def rewards_of(rollouts: Iterable[Rollout]) -> list[float]:
    return [rollout.reward for rollout in rollouts if rollout.reward is not None]


def _means(groups: Mapping[Key, Sequence[float]]) -> dict[Key, Estimate]:
    return {key: mean for key, values in groups.items() if (mean := estimate_mean(values)) is not None}


def mean_format(rollout: Rollout) -> float:
    """Return the share of an episode's turns that could be parsed, from the reward column or the metric `format`."""
    return rollout.columns.get("format", rollout.metrics.get("format", 0.0))
