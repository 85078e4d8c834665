"""What a training step leaves behind: its curves' points and all its rollouts."""

import math
from collections.abc import Mapping, Sequence

from backend.domain.rollouts import Rollout
from workers.jobs.recording import RunRecorder
from workers.training.examination import mean_format
from workers.training.trl_grpo import GrpoStep


def record_step(recorder: RunRecorder, step: GrpoStep, columns: Sequence[str]) -> dict[str, float]:
    """Store the step's rollouts, then its figures. Returns the figures."""
    recorder.store(step.rollouts)
    figures = step_figures(step, columns)
    recorder.metrics(step.step, figures)
    return figures


def step_figures(step: GrpoStep, columns: Sequence[str]) -> dict[str, float]:
    """Points of the step's curves, by name."""
    completed = [rollout for rollout in step.rollouts if rollout.is_completed]
    rewards = [rollout.reward for rollout in completed if rollout.reward is not None]
    tokens = sum(rollout.tokens_out for rollout in step.rollouts)
    figures = {
        "reward": _mean(rewards),
        "reward_std": _spread(rewards),
        **{f"columns/{name}": _mean([rollout.columns[name] for rollout in completed]) for name in columns},
        **_by_level(completed),
        "format": _mean([mean_format(rollout) for rollout in completed]),
        "entropy": step.entropy,
        "completions/mean_length": _mean([float(rollout.tokens_out) for rollout in completed]),
        "completions/truncated": _mean([float(rollout.is_truncated) for rollout in completed]),
        "turns": _mean([float(len(rollout.steps)) for rollout in completed]),
        "groups/no_variance": step.no_variance,
        "rollouts/failed": float(len(step.rollouts) - len(completed)),
        "loss": step.loss,
        "grad_norm": step.grad_norm,
        "learning_rate": step.learning_rate,
        "seconds/step": step.seconds,
        "seconds/rollouts": step.rollout_seconds,
        "tokens_per_second": tokens / step.seconds if step.seconds > 0 else math.nan,
    }
    return figures if step.divergence is None else {**figures, "divergence": step.divergence}


def _by_level(completed: Sequence[Rollout]) -> Mapping[str, float]:
    levels = sorted({rollout.task.level for rollout in completed})
    rewards = {n: [r.reward for r in completed if r.task.level == n and r.reward is not None] for n in levels}
    return {f"level/{level}": _mean(values) for level, values in rewards.items()} if len(levels) > 1 else {}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _spread(values: Sequence[float]) -> float:
    """Standard deviation (of the sample)."""
    if len(values) < 2:
        return math.nan
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
