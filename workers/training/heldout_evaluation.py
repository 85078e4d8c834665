"""Results of a held-out evaluation: fixed tasks, one rollout each, with confidence intervals."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from pydantic_core import to_jsonable_python

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

    def as_json(self) -> dict[str, object]:
        values: dict[str, object] = to_jsonable_python(asdict(self))
        return values

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
    reward = _mean_reward(completed)
    if is_mixed:
        rewards = [(env, [each.reward for each in of_env[env.name] if each.reward is not None]) for env in envs]
        reward = weighted_mean([(env.weight, own_rewards) for env, own_rewards in rewards])
    successes: dict[str, list[float]] = {}
    for env in envs:
        rule, rewarded = default_rule(env.manifest), [each for each in of_env[env.name] if each.reward is not None]
        successes[env.name] = [float(rule.is_met(each.reward, each.columns)) for each in rewarded]
    return HeldoutEvaluation(
        reward=reward,
        columns=_present(
            {name: estimate_mean([r.columns[name] for r in completed if name in r.columns]) for name in columns}
        ),
        levels={} if is_mixed else _levels(completed),
        environments=_present({name: _mean_reward(rollouts) for name, rollouts in own.items()}),
        format=sum(formats) / len(formats) if formats else 0.0,
        failed=len(rollouts) - len(completed),
        success=estimate_mean([success for own_successes in successes.values() for success in own_successes]),
        environment_levels={name: _levels(rollouts) for name, rollouts in own.items() if rollouts},
        environment_successes=_present({name: estimate_mean(successes[name]) for name in own}),
    )


def _levels(completed: Sequence[Rollout]) -> dict[int, Estimate]:
    levels = sorted({rollout.task.level for rollout in completed})
    return _present({n: _mean_reward([each for each in completed if each.task.level == n]) for n in levels})


def _mean_reward(completed: Sequence[Rollout]) -> Estimate | None:
    return estimate_mean([rollout.reward for rollout in completed if rollout.reward is not None])


def _present(estimates: dict[Key, Estimate | None]) -> dict[Key, Estimate]:
    return {key: value for key, value in estimates.items() if value is not None}


def mean_format(rollout: Rollout) -> float:
    """Return the share of an episode's turns that could be parsed, from the reward column or the metric `format`."""
    return rollout.columns.get("format", rollout.metrics.get("format", 0.0))
