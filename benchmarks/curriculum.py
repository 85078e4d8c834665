"""An adaptive curriculum against a fixed mix of levels on the arithmetic ladder, at the same budget.

    OMP_NUM_THREADS=1 python -m benchmarks.curriculum [--seeds 6] [--steps 300] [--mastered 0.6]

Of each seed one warm-up is made, and from it two GRPO runs with the same steps, tasks, group size, rate and seed: one
with all twenty levels in every step, one whose window climbs. Both are then examined greedily on the same held-out
tasks of every level. The final level mastered is the number of levels from the lowest one on whose success is at least
`--mastered`, one after the other. Differences are paired: levels over seeds (Student's t), tasks over tasks and seeds
(bootstrap).
"""

import argparse
import logging
import statistics
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from rich.console import Console
from rich.table import Table
from sqlalchemy import select

from backend.db.models import Checkpoint, EnvironmentVersion, Group, MetricPoint, Rollout, Task
from backend.db.session import transaction
from backend.domain.manifest import Manifest
from backend.domain.statistics import Estimate, estimate_mean, paired_difference
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase
from benchmarks.installation import installation
from benchmarks.mastery_runs import train_apart
from benchmarks.training_runs import environment

ENVIRONMENT = "arithmetic_ladder"
ADAPTIVE = {"kind": "adaptive", "window": 128, "mastery": 0.6, "collapse": 0.0, "width": 4, "lower": 0.5}
ARMS: dict[str, dict[str, Any]] = {"fixed": {"kind": "fixed"}, "adaptive": ADAPTIVE}
console = Console(soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Reached:
    """What one run came to."""

    success: dict[int, list[float]]
    """Of each held-out task, by level."""
    cpu_seconds: float
    window: float | None
    """Top level of the window at the end."""

    def mastered(self, bar: float) -> int:
        """Levels from the lowest on, one after the other."""
        count = 0
        while count in self.success and statistics.fmean(self.success[count]) >= bar:
            count += 1
        return count

    @property
    def tasks(self) -> list[float]:
        return [value for level in sorted(self.success) for value in self.success[level]]


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    found: list[dict[str, Reached]] = []
    with installation():
        version = environment(ENVIRONMENT)
        for seed in range(options.seeds):
            start = _warmed_up(version, seed, options)
            found.append({arm: _trained(version, start, arm, seed, options) for arm in ARMS})
            _tell(seed, found[-1], options.mastered)
    _report(found, options)
    return 0


def _warmed_up(version: EnvironmentVersion, seed: int, options: argparse.Namespace) -> uuid.UUID:
    choices = {
        "recipe": "sft",
        "model": {"context": 128},
        "sft": {"script": "teacher", "episodes": options.lessons, "steps": options.warm_up, "noise": 0.0},
        "heldout": {"tasks": 20},
        "seed": seed,
    }
    trained = train_apart(version, f"warm-up {seed}", TrainingConfiguration.model_validate(choices))
    with transaction() as session:
        of_run = select(Checkpoint.id).where(Checkpoint.run_id == trained.run_id, Checkpoint.stage == "sft")
        return session.scalars(of_run).one()


def _trained(
    version: EnvironmentVersion, start: uuid.UUID, arm: str, seed: int, options: argparse.Namespace
) -> Reached:
    levels = Manifest.model_validate(version.manifest).proctor.tasks.levels
    choices = {
        "recipe": "grpo",
        "model": {"source": "checkpoint", "checkpoint": start},
        "grpo": {
            "steps": options.steps,
            "tasks_per_step": levels,
            "group_size": 8,
            "learning_rate": 1e-3,
            "schedule": "constant",
            "scale_rewards": "group",
            "beta": 0.0,
            "max_grad_norm": 0.5,
        },
        "curriculum": ARMS[arm],
        "heldout": {"every": options.steps, "tasks": options.tasks * levels, "temperature": 0.0},
        "checkpoints": {"every": options.steps},
        "seed": seed,
    }
    trained = train_apart(version, f"{arm} {seed}", TrainingConfiguration.model_validate(choices))
    return _reached(trained.run_id, options.steps, trained.cpu_seconds)


def _reached(run_id: uuid.UUID, step: int, cpu_seconds: float) -> Reached:
    statement = (
        select(Task.level, Rollout.columns)
        .join(Group, Group.task_id == Task.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.HELDOUT, Rollout.training_step == step)
        .order_by(Task.index)
    )
    top = select(MetricPoint.value).where(
        MetricPoint.run_id == run_id, MetricPoint.name == f"curriculum/{ENVIRONMENT}/high", MetricPoint.step == step
    )
    success: dict[int, list[float]] = {}
    with transaction() as session:
        for level, columns in session.execute(statement):
            success.setdefault(level, []).append(columns[0] if columns else 0.0)
        return Reached(success, cpu_seconds, session.scalar(top))


def _tell(seed: int, reached: dict[str, Reached], bar: float) -> None:
    for arm, each in reached.items():
        low = " ".join(f"{statistics.fmean(each.success[level]):.2f}" for level in range(8))
        top = "" if each.window is None else f", window up to level {each.window:g}"
        console.print(
            f"seed {seed} {arm:>8}: {each.mastered(bar)} levels; levels 0–7: {low}{top}; {each.cpu_seconds:.0f} CPU s"
        )


def _report(found: Sequence[dict[str, Reached]], options: argparse.Namespace) -> None:
    table = Table("", "fixed", "adaptive", "difference (95 %)", title=f"{len(found)} seeds, {options.steps} steps")
    levels = {arm: [float(each[arm].mastered(options.mastered)) for each in found] for arm in ARMS}
    by_seed = [after - before for before, after in zip(levels["fixed"], levels["adaptive"], strict=True)]
    means = [f"{statistics.fmean(levels[arm]):.2f}" for arm in ARMS]
    table.add_row(f"levels mastered (≥ {options.mastered:g})", *means, _interval(estimate_mean(by_seed)))
    tasks = {arm: [value for each in found for value in each[arm].tasks] for arm in ARMS}
    means = [f"{statistics.fmean(tasks[arm]):.3f}" for arm in ARMS]
    table.add_row("success, all levels", *means, _interval(paired_difference(tasks["fixed"], tasks["adaptive"])))
    console.print(table)


def _interval(difference: Estimate | None) -> str:
    if difference is None:
        return "–"
    return f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300, help="GRPO steps of 20 tasks x 8 episodes")
    parser.add_argument("--warm-up", type=int, default=2000, help="SFT steps of 32 lessons")
    parser.add_argument("--lessons", type=int, default=20_000, help="scripted episodes, a twentieth of each level")
    parser.add_argument("--tasks", type=int, default=40, help="held-out tasks of each level")
    parser.add_argument("--mastered", type=float, default=0.6, help="success from which a level is mastered")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
