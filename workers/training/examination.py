"""The examination: fixed held-out tasks, played once each, as figures with intervals."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backend.domain.rollouts import Rollout
from backend.domain.statistics import Estimate, estimate_mean


@dataclass(frozen=True, slots=True)
class Examination:
    """What a policy reached on the held-out tasks."""

    reward: Estimate | None
    """None when every rollout failed."""
    columns: dict[str, Estimate]
    levels: dict[int, Estimate]
    """Reward by level."""
    format: float
    """Mean share of turns that could be parsed."""
    failed: int

    def as_json(self) -> dict[str, Any]:
        return {
            "reward": asdict(self.reward) if self.reward else None,
            "columns": {name: asdict(value) for name, value in self.columns.items()},
            "levels": {str(level): asdict(value) for level, value in self.levels.items()},
            "format": self.format,
            "failed": self.failed,
        }

    def metrics(self) -> dict[str, float]:
        """Points of the curves `heldout/…`."""
        if self.reward is None:
            return {}
        return {
            "heldout/reward": self.reward.mean,
            "heldout/format": self.format,
            **{f"heldout/columns/{name}": value.mean for name, value in self.columns.items()},
            **{f"heldout/level/{level}": value.mean for level, value in self.levels.items()},
        }


def summarise(rollouts: Sequence[Rollout], columns: Iterable[str]) -> Examination:
    """Figures over the completed rollouts; a failed one is no zero."""
    completed = [rollout for rollout in rollouts if rollout.is_completed]
    levels = sorted({rollout.task.level for rollout in completed})
    formats = [mean_format(rollout) for rollout in completed]
    return Examination(
        reward=_mean_reward(completed),
        columns=_present({name: estimate_mean([r.columns[name] for r in completed]) for name in columns}),
        levels=_present({n: _mean_reward([r for r in completed if r.task.level == n]) for n in levels}),
        format=sum(formats) / len(formats) if formats else 0.0,
        failed=len(rollouts) - len(completed),
    )


def mean_format(rollout: Rollout) -> float:
    """Share of an episode's turns that could be parsed: a reward column or, where it carries no weight, a metric."""
    return rollout.columns.get("format", rollout.metrics.get("format", 0.0))


def _mean_reward(completed: Sequence[Rollout]) -> Estimate | None:
    return estimate_mean([rollout.reward for rollout in completed if rollout.reward is not None])


def _present(estimates: dict[Any, Estimate | None]) -> dict[Any, Estimate]:
    return {key: value for key, value in estimates.items() if value is not None}
