"""An adaptive curriculum against a fixed mix of levels on the arithmetic ladder, at the same budget.

    OMP_NUM_THREADS=1 python -m benchmarks.curriculum [--seeds 0,1,2] [--steps 160] [--mastered 0.8]

The ladder's weak script `teacher`, which slips in two of five episodes, plays once. Of each seed one warm-up imitates
what it played on the lowest levels, slips included, and from it come two GRPO runs with the same steps, tasks, group
size, rate and seed: one with all twenty levels in every step, one whose window climbs by the product's defaults. Both
are then examined on the same held-out tasks of every level, sampled as they were trained. The final level mastered is
the number of levels from the lowest one on whose success is at least `--mastered`, one after the other. Differences are
paired: levels over seeds (Student's t), tasks over tasks and seeds (bootstrap).
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
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.statistics import Estimate, estimate_mean, paired_difference
from backend.domain.vocabulary import Phase
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import MetricPoint
from benchmarks.cpu import tree_seconds
from benchmarks.installation import installation
from benchmarks.training_runs import environment, timed_run

ENVIRONMENT = "arithmetic_ladder"
SCRIPT = "teacher"
ARMS: dict[str, dict[str, Any]] = {"fixed": {"kind": "fixed"}, "adaptive": {"kind": "adaptive"}}
TOLD_LEVELS = 6
console = Console(soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Reached:
    """What a checkpoint can do."""

    success: dict[int, list[float]]
    """Of each held-out task, by level."""
    no_variance: float | None = None
    """Mean share of the groups that taught nothing; None where nothing was reinforced."""
    windows: tuple[tuple[int, int], ...] = ()
    """The window's top level, with the step at which it became that."""
    cpu_seconds: float = 0.0

    def mastered(self, bar: float) -> int:
        """Levels from the lowest on, one after the other."""
        count = 0
        while count in self.success and statistics.fmean(self.success[count]) >= bar:
            count += 1
        return count

    @property
    def tasks(self) -> list[float]:
        return [value for level in sorted(self.success) for value in self.success[level]]


@dataclass(frozen=True, slots=True)
class Compared:
    """One seed."""

    warm_up: Reached
    arms: dict[str, Reached]


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    disable_progress_bar()
    found: list[Compared] = []
    with installation():
        version = environment(ENVIRONMENT)
        lessons = _played_once(version, options)
        for seed in options.seeds:
            found.append(_compared(version, lessons, seed, options))
            _tell(seed, found[-1], options.mastered)
    _report(found, options)
    return 0


def _played_once(version: EnvironmentVersion, options: argparse.Namespace) -> uuid.UUID:
    """The run that holds the script's play, for all seeds."""
    choices = {
        "recipe": "sft",
        "model": {"context": 128},
        "sft": {"script": SCRIPT, "episodes": options.lessons, "steps": 1, "noise": 0.0},
        "heldout": {"tasks": 1},
    }
    return timed_run(version, choices)[0]


def _compared(version: EnvironmentVersion, lessons: uuid.UUID, seed: int, options: argparse.Namespace) -> Compared:
    start, warm_up = _warmed_up(version, lessons, seed, options)
    return Compared(warm_up, {arm: _trained(version, start, arm, seed, options) for arm in ARMS})


def _warmed_up(
    version: EnvironmentVersion, lessons: uuid.UUID, seed: int, options: argparse.Namespace
) -> tuple[uuid.UUID, Reached]:
    """A hundredth of the lessons is played anew, so that the tokenizer reads the words of all levels."""
    low = f"level < {options.warm_levels}"
    choices = {
        "recipe": "sft",
        "model": {"context": 128, "vocabulary": 512},
        "sft": {
            "source": "rollouts",
            "runs": [lessons],
            "where": low,
            "also_script": 0.01,
            "script": SCRIPT,
            "script_where": low,
            "noise": 0.0,
            "steps": options.warm_up,
            "batch": options.warm_batch,
            "learning_rate": options.warm_rate,
        },
        "heldout": _examination(version, options),
        "seed": seed,
    }
    run_id, reached = _run(version, choices, 0)
    with transaction() as session:
        of_run = select(Checkpoint.id).where(Checkpoint.run_id == run_id, Checkpoint.stage == "sft")
        return session.scalars(of_run).one(), reached


def _trained(
    version: EnvironmentVersion, start: uuid.UUID, arm: str, seed: int, options: argparse.Namespace
) -> Reached:
    choices = {
        "recipe": "grpo",
        "model": {"source": "checkpoint", "checkpoint": start},
        "grpo": {
            "steps": options.steps,
            "tasks_per_step": _levels(version),
            "group_size": 8,
            "learning_rate": options.rate,
            "schedule": "linear",
            "scale_rewards": "group",
            "beta": 0.0,
            "max_grad_norm": 0.5,
        },
        "curriculum": ARMS[arm],
        "heldout": {"every": options.steps, **_examination(version, options)},
        "checkpoints": {"every": options.steps},
        "seed": seed,
    }
    return _run(version, choices, options.steps)[1]


def _examination(version: EnvironmentVersion, options: argparse.Namespace) -> dict[str, Any]:
    return {"tasks": options.tasks * _levels(version), "temperature": options.temperature}


def _levels(version: EnvironmentVersion) -> int:
    return Manifest.model_validate(version.manifest).proctor.tasks.levels


def _run(version: EnvironmentVersion, choices: dict[str, Any], step: int) -> tuple[uuid.UUID, Reached]:
    before = tree_seconds()
    run_id, _ = timed_run(version, choices)
    no_variance = [value for _, value in _curve(run_id, "groups/no_variance")]
    reached = Reached(
        success=_success(run_id, step),
        no_variance=statistics.fmean(no_variance) if no_variance else None,
        windows=_windows(run_id),
        cpu_seconds=tree_seconds() - before,
    )
    return run_id, reached


def _success(run_id: uuid.UUID, step: int) -> dict[int, list[float]]:
    statement = (
        select(Task.level, Rollout.columns)
        .join(Group, Group.task_id == Task.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.HELDOUT, Rollout.training_step == step)
        .order_by(Task.index)
    )
    success: dict[int, list[float]] = {}
    with transaction() as session:
        for level, columns in session.execute(statement):
            success.setdefault(level, []).append(columns[0] if columns else 0.0)
    return success


def _windows(run_id: uuid.UUID) -> tuple[tuple[int, int], ...]:
    tops = [(step, int(value)) for step, value in _curve(run_id, f"curriculum/{ENVIRONMENT}/high")]
    return tuple(
        here for before, here in zip([None, *tops], tops, strict=False) if before is None or before[1] != here[1]
    )


def _curve(run_id: uuid.UUID, name: str) -> list[tuple[int, float]]:
    points = select(MetricPoint.step, MetricPoint.value).where(MetricPoint.run_id == run_id, MetricPoint.name == name)
    with transaction() as session:
        return [
            (step, value) for step, value in session.execute(points.order_by(MetricPoint.step)) if value is not None
        ]


def _tell(seed: int, compared: Compared, bar: float) -> None:
    for name, each in {"warm-up": compared.warm_up, **compared.arms}.items():
        low = " ".join(f"{statistics.fmean(each.success[level]):.2f}" for level in range(TOLD_LEVELS))
        parts = [f"{each.mastered(bar)} levels", f"levels 0–{TOLD_LEVELS - 1}: {low}", f"{each.cpu_seconds:.0f} CPU s"]
        if each.no_variance is not None:
            parts.append(f"groups without variance {each.no_variance:.0%}")
        if each.windows:
            parts.append("top level " + ", ".join(f"{level} at step {step}" for step, level in each.windows))
        console.print(f"seed {seed} {name:>8}: {'; '.join(parts)}")


def _report(found: Sequence[Compared], options: argparse.Namespace) -> None:
    title = f"{len(found)} seeds, {options.steps} steps"
    table = Table("", "warm-up", "fixed", "adaptive", "adaptive − fixed (95 %)", title=title)
    levels = {arm: [float(each.arms[arm].mastered(options.mastered)) for each in found] for arm in ARMS}
    by_seed = [after - before for before, after in zip(levels["fixed"], levels["adaptive"], strict=True)]
    first = statistics.fmean(each.warm_up.mastered(options.mastered) for each in found)
    means = [f"{statistics.fmean(levels[arm]):.2f}" for arm in ARMS]
    table.add_row(
        f"levels mastered (≥ {options.mastered:g})", f"{first:.2f}", *means, _interval(estimate_mean(by_seed))
    )
    tasks = {arm: [value for each in found for value in each.arms[arm].tasks] for arm in ARMS}
    first = statistics.fmean(value for each in found for value in each.warm_up.tasks)
    means = [f"{statistics.fmean(tasks[arm]):.3f}" for arm in ARMS]
    difference = paired_difference(tasks["fixed"], tasks["adaptive"])
    table.add_row("success, all levels", f"{first:.3f}", *means, _interval(difference))
    console.print(table)


def _interval(difference: Estimate | None) -> str:
    if difference is None:
        return "–"
    return f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default=[0, 1, 2, 3, 4], help="with commas")
    parser.add_argument("--steps", type=int, default=160, help="GRPO steps of 20 tasks x 8 episodes")
    parser.add_argument("--rate", type=float, default=5e-4, help="highest learning rate of GRPO")
    parser.add_argument("--lessons", type=int, default=80_000, help="episodes of the script, a twentieth of each level")
    parser.add_argument("--warm-levels", type=int, default=2, help="levels that are imitated")
    parser.add_argument("--warm-up", type=int, default=4500, help="SFT steps")
    parser.add_argument("--warm-batch", type=int, default=32, help="lessons in an SFT step")
    parser.add_argument("--warm-rate", type=float, default=2e-3, help="highest learning rate of SFT")
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks of each level")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the examination; 0: greedily")
    parser.add_argument("--mastered", type=float, default=0.8, help="success from which a level is mastered")
    return parser.parse_args()


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
