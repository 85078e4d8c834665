"""Curves of a GRPO step, the remaining time of a stage, and a writer that stores a step during the next one."""

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import structlog

from backend.domain.rollouts.rollout import Rollout
from workers.training.grpo_batch import MASKED, REPLACED, SCREENED, GrpoStep, sample_deviation
from workers.training.hardware import peak_memory_mb
from workers.training.heldout_evaluation import mean_format, rewards_of

Key = TypeVar("Key", int, str)
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
FEWEST = 8
"""Rollouts that a level or an environment needs for its own deviation and quantiles. This also bounds the points of a
step: at most five per column for eight rollouts, however many levels there are."""
ETA_STEPS = 60  # recent steps that the remaining time is estimated from: enough to include held-out evaluations

logger = structlog.get_logger(__name__)


def step_figures(
    step: GrpoStep, columns: Sequence[str], environments: Mapping[uuid.UUID | None, str] | None = None
) -> dict[str, float]:
    """Return the points of the step's curves, by name.

    Replaced and masked rollouts count, because the policy played them. Canaries do not: their curve is the cheat rate.
    `environments`: names by the version that tasks carry.
    """
    completed = [rollout for rollout in step.rollouts if rollout.is_completed and not rollout.task.is_canary]
    rewards = rewards_of(completed)
    figures = {"reward": _mean(rewards), "reward_std": _spread(rewards)["std"]}
    for name in columns:
        values = [rollout.columns[name] for rollout in completed if name in rollout.columns]
        figures[f"columns/{name}"] = _mean(values)
        figures |= {f"columns_{label}/{name}": value for label, value in _spread(values).items()}
    if environments and len(environments) > 1:
        # levels of different environments are not comparable; the planner adds each environment's reward
        by_environment = _split(completed, lambda each: environments[each.task.version_id])
        figures |= _part_figures(by_environment, columns, "environment")
        for name, members in by_environment.items():
            levels = _split(members, lambda rollout: rollout.task.level)
            figures |= _part_figures(levels, columns, "environment_level", f"{name}/")
    else:
        figures |= _part_figures(_split(completed, lambda rollout: rollout.task.level), columns, "level")
    figures |= {
        "format": _mean([mean_format(rollout) for rollout in completed]),
        "completions/mean_length": _mean([float(rollout.tokens_out) for rollout in completed]),
        "completions/truncated": _mean([float(rollout.is_truncated) for rollout in completed]),
        "turns": _mean([float(len(rollout.steps)) for rollout in completed]),
        "rollouts/failed": float(sum(not rollout.is_completed for rollout in step.rollouts)),
        "rollouts/masked": float(sum(MASKED in rollout.metrics for rollout in step.rollouts)),
        "rollouts/screened": float(sum(SCREENED in rollout.metrics for rollout in step.rollouts)),
        "groups/replaced": _mean([float(REPLACED in rollout.metrics) for rollout in step.rollouts]),
        "tokens/in": float(sum(rollout.tokens_in for rollout in step.rollouts)),
        "tokens/out": float(sum(rollout.tokens_out for rollout in step.rollouts)),
        **{f"seconds/{name}": seconds for name, seconds in step.seconds.items()},
    }
    seconds = step.seconds["step"]
    figures["memory/peak_mb"] = peak_memory_mb()
    figures["tokens_per_second"] = figures["tokens/out"] / seconds if seconds > 0 else math.nan
    return figures | step.figures


def _part_figures(
    parts: Mapping[Key, Sequence[Rollout]], columns: Sequence[str], kind: str, prefix: str = ""
) -> dict[str, float]:
    """Return the mean of each column that a part has, with deviation and quantiles if it has enough rollouts.

    Levels also get their mean reward.
    """
    figures = {}
    for part, rollouts in parts.items():
        if kind != "environment":
            figures[f"{kind}/{prefix}{part}"] = _mean(rewards_of(rollouts))
        for name in columns:
            values = [rollout.columns[name] for rollout in rollouts if name in rollout.columns]
            place = f"{prefix}{part}/{name}"
            if values:
                figures[f"columns_{kind}/{place}"] = _mean(values)
            if len(values) >= FEWEST:
                spread = _spread(values)
                figures |= {f"columns_{kind}_{label}/{place}": value for label, value in spread.items()}
    return figures


def _split(rollouts: Iterable[Rollout], key: Callable[[Rollout], Key]) -> dict[Key, list[Rollout]]:
    """Group by key, in the order of keys. Empty if all rollouts have the same key."""
    parts: dict[Key, list[Rollout]] = {}
    for rollout in rollouts:
        parts.setdefault(key(rollout), []).append(rollout)
    return dict(sorted(parts.items())) if len(parts) > 1 else {}


def _spread(values: Sequence[float]) -> dict[str, float]:
    quantiles = np.quantile(values, list(QUANTILES.values())) if values else [math.nan] * len(QUANTILES)
    by_label = {label: float(value) for label, value in zip(QUANTILES, quantiles, strict=True)}
    deviation = sample_deviation(values)
    return {"std": math.nan if deviation is None else deviation, **by_label}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def seconds_left(ends: Sequence[tuple[int, float]], last: int) -> float:
    """Estimate the seconds from the end of the latest step to that of step `last`.

    `ends`: recent steps and when they ended, so that everything between them counts.
    """
    (first, began), (step, now) = ends[0], ends[-1]
    return (last - step) * (now - began) / max(1, step - first)


@dataclass
class BackgroundWriter(AbstractContextManager["BackgroundWriter"]):
    """One thread that writes in order, at most one step behind. Its errors are raised by the next call."""

    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="storing"))
    _last: Future[None] | None = None

    def write(self, work: Callable[[], None]) -> None:
        self.wait()
        self._last = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until everything is written. Call it before writing what refers to it or marking a state complete."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
            logger.exception("the last step could not be stored")  # the error that ended the training matters more
        finally:
            self._thread.shutdown()
