"""The points of a training step's curves."""

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from backend.domain.rollouts.rollout import Rollout
from workers.training.grpo.credit import spread_of
from workers.training.grpo.stage import MASKED, REPLACED, SCREENED, GrpoStep
from workers.training.heldout_evaluation import mean_format

Key = TypeVar("Key", int, str)
Environments = Mapping[uuid.UUID | None, str]
"""Names by what the tasks of each environment carry."""
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
FEWEST = 8
"""Rollouts that a level or an environment needs for a deviation and quantiles of its own: fewer say little, and so a
step has at most five points of a column for eight rollouts, however many levels there are."""


def step_figures(step: GrpoStep, columns: Sequence[str], environments: Environments | None = None) -> dict[str, float]:
    """Points of the step's curves, by name. Replaced and masked rollouts are what the policy does too, and count;
    canaries do not: their curve is the cheat rate."""
    completed = [rollout for rollout in step.rollouts if rollout.is_completed and not rollout.task.is_canary]
    return {
        **_rewards(completed),
        **_columns(completed, columns),
        **_parts(completed, columns, environments or {}),
        **_play(step.rollouts, completed),
        **_update(step),
        **_time(step),
    }


def _rewards(completed: Sequence[Rollout]) -> dict[str, float]:
    rewards = [rollout.reward for rollout in completed if rollout.reward is not None]
    spread = spread_of(rewards)
    return {"reward": _mean(rewards), "reward_std": math.nan if spread is None else spread}


def _columns(completed: Sequence[Rollout], columns: Sequence[str]) -> dict[str, float]:
    """Of each column the mean, the standard deviation and quantiles. In a mix, over the rollouts that have it."""
    figures = {}
    for name in columns:
        values = _values(completed, name)
        figures[f"columns/{name}"] = _mean(values)
        figures |= {f"columns_{label}/{name}": value for label, value in _spread(values).items()}
    return figures


def _parts(completed: Sequence[Rollout], columns: Sequence[str], environments: Environments) -> dict[str, float]:
    """By level, or where there are several environments by environment and each one's own levels: levels of different
    environments say nothing together. The planner draws each environment's reward."""
    if len(environments) > 1:
        figures: dict[str, float] = {}
        for name, members in _split(completed, lambda rollout: environments[rollout.task.version_id]).items():
            figures |= _told(members, columns, "environment", name)
            figures |= _levels(members, f"environment_level/{name}/")
            for level, own in _split(members, _level).items():
                figures |= _told(own, columns, "environment_level", f"{name}/{level}")
        return figures
    figures = _levels(completed, "level/")
    for level, members in _split(completed, _level).items():
        figures |= _told(members, columns, "level", str(level))
    return figures


def _told(rollouts: Sequence[Rollout], columns: Sequence[str], part: str, place: str) -> dict[str, float]:
    """Of each column that these rollouts have the mean, and of enough of them also the deviation and quantiles."""
    figures = {}
    for name in columns:
        values = _values(rollouts, name)
        if values:
            figures[f"columns_{part}/{place}/{name}"] = _mean(values)
        if len(values) >= FEWEST:
            figures |= {f"columns_{part}_{label}/{place}/{name}": value for label, value in _spread(values).items()}
    return figures


def _values(rollouts: Iterable[Rollout], column: str) -> list[float]:
    return [rollout.columns[column] for rollout in rollouts if column in rollout.columns]


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Standard deviation and quantiles."""
    deviation = spread_of(values)
    found = np.quantile(values, list(QUANTILES.values())) if values else [math.nan] * len(QUANTILES)
    quantiles = {label: float(value) for label, value in zip(QUANTILES, found, strict=True)}
    return {"std": math.nan if deviation is None else deviation, **quantiles}


def _level(rollout: Rollout) -> int:
    return rollout.task.level


def _levels(completed: Sequence[Rollout], prefix: str) -> dict[str, float]:
    """Reward by level."""
    levels = _split(completed, _level).items()
    return {f"{prefix}{level}": _mean([r.reward for r in own if r.reward is not None]) for level, own in levels}


def _split(rollouts: Iterable[Rollout], key: Callable[[Rollout], Key]) -> dict[Key, list[Rollout]]:
    """By key in its order; nothing where all have the same."""
    parts: dict[Key, list[Rollout]] = {}
    for rollout in rollouts:
        parts.setdefault(key(rollout), []).append(rollout)
    return dict(sorted(parts.items())) if len(parts) > 1 else {}


def _play(rollouts: Sequence[Rollout], completed: Sequence[Rollout]) -> dict[str, float]:
    return {
        "format": _mean([mean_format(rollout) for rollout in completed]),
        "completions/mean_length": _mean([float(rollout.tokens_out) for rollout in completed]),
        "completions/truncated": _mean([float(rollout.is_truncated) for rollout in completed]),
        "turns": _mean([float(len(rollout.steps)) for rollout in completed]),
        "rollouts/failed": float(sum(not rollout.is_completed for rollout in rollouts)),
        "rollouts/masked": float(sum(MASKED in rollout.metrics for rollout in rollouts)),
        "rollouts/screened": float(sum(SCREENED in rollout.metrics for rollout in rollouts)),
        "groups/replaced": _mean([float(REPLACED in rollout.metrics) for rollout in rollouts]),
        "tokens/in": float(sum(rollout.tokens_in for rollout in rollouts)),
        "tokens/out": float(sum(rollout.tokens_out for rollout in rollouts)),
    }


def _update(step: GrpoStep) -> dict[str, float]:
    """What the optimiser did."""
    told = {
        "divergence": step.divergence,
        "ratio/low_clip": step.ratio.low_clip,
        "ratio/high_clip": step.ratio.high_clip,
    }
    return {
        "groups/no_variance": step.no_variance,
        "entropy": step.entropy,
        "loss": step.loss,
        "grad_norm": step.grad_norm,
        "learning_rate": step.learning_rate,
        "lr_factor": step.learning_rate_factor,
        "temperature": step.temperature,
        "ratio/mean": step.ratio.mean,
        "ratio/max": step.ratio.highest,
        **{name: value for name, value in told.items() if value is not None},
    }


def _time(step: GrpoStep) -> dict[str, float]:
    tokens = sum(rollout.tokens_out for rollout in step.rollouts)
    return {
        "seconds/step": step.seconds,
        "seconds/rollouts": step.rollout_seconds,
        "seconds/reward": step.reward_seconds,
        "seconds/forward": step.forward_seconds,
        "seconds/backward": step.backward_seconds,
        "seconds/optimiser": step.optimiser_seconds,
        "seconds/other": step.other_seconds,
        "seconds/idle": step.idle_seconds,
        "tokens_per_second": tokens / step.seconds if step.seconds > 0 else math.nan,
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
