"""How long a GRPO step takes, ours and a bare TRL script's: same weights, tasks, group size and batch, turn about.

    python -m benchmarks.training_step [--steps 10] [--rounds 3] [--skip 2]

Ours is a whole training run: env host and sandbox, Postgres with every rollout, detectors, alarms. The bare script
plays the same game in its own process and stores nothing; it samples either with transformers' `generate`, as most
people write it (`generate`), or with our own sampler, which keeps the key-value cache between turns (`sampler`): the
first says what one gains, the second what all that is around the trainer costs.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import structlog
import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.domain.training.configuration import TrainingConfiguration
from backend.environments.tables import EnvironmentVersion
from benchmarks.bare.grpo import train as train_bare
from benchmarks.bare.play import generating
from benchmarks.bare.sampler import keeping_cache
from benchmarks.installation import installation
from benchmarks.training_runs import environment, split_of, tasks_of, timed_run, warmed_up

ASKED, ASKED_STORAGE = 1.10, 0.03
BARE = {"generate": generating, "sampler": keeping_cache}
console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    disable_progress_bar()
    torch.set_num_threads(1)
    with installation() as folder:
        version = environment("tictactoe")
        console.print("warming a policy up …", style="dim")
        start = warmed_up(version)
        rounds = [_round(version, start, options, folder, number) for number in range(options.rounds)]
    _report(rounds, options)
    return 0


def _round(
    version: EnvironmentVersion, start: Checkpoint, options: argparse.Namespace, folder: Path, number: int
) -> dict[str, list[float]]:
    """Seconds a step of each side, and ours of storing."""
    choices = _choices(start, options)
    run_id, times = timed_run(version, choices)
    found = {"ours": _steps(times.steps, options.skip), "storing": times.stored_seconds[options.skip :]}
    found["cpu ours"] = _steps(times.cpu, options.skip)
    found["cpu storing"] = [times.storing_cpu / len(times.steps)]
    tasks, grpo = tasks_of(run_id), TrainingConfiguration.model_validate(choices).grpo
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        weights = get_folder(start.artifact, Path(scratch) / "weights")
        for name, make_sample in BARE.items():
            stamps = train_bare(weights, tasks, grpo, Path(scratch) / name, make_sample)
            found[name] = _steps(stamps.times, options.skip)
            found[f"cpu {name}"] = _steps(stamps.cpu, options.skip)
    figures = ", ".join(f"{name} {1000 * statistics.median(seconds):,.0f} ms" for name, seconds in found.items())
    split = ", ".join(f"{name} {1000 * seconds:,.0f}" for name, seconds in split_of(run_id, options.skip).items())
    console.print(f"round {number + 1}: {figures}; ours in ms: {split}", style="dim")
    return found


def _choices(start: Checkpoint, options: argparse.Namespace) -> dict[str, Any]:
    never = options.steps + 1
    return {
        "recipe": "grpo",
        "model": {"source": "checkpoint", "checkpoint": start.id},
        "grpo": {"steps": options.steps, "tasks_per_step": 18, "group_size": 8, "beta": options.beta},
        "heldout": {"every": never, "tasks": 1},
        "checkpoints": {"every": never},
    }


def _steps(stamps: list[float], skip: int) -> list[float]:
    """Seconds between the ends of steps, without the first ones."""
    return [after - before for before, after in zip(stamps[skip:], stamps[skip + 1 :], strict=False)]


def _report(rounds: list[dict[str, list[float]]], options: argparse.Namespace) -> None:
    medians = {name: [statistics.median(each[name]) for each in rounds] for name in rounds[0]}
    for name in BARE:
        console.print(
            f"step time, ours / bare TRL with {name}: {_ratio(medians, '', name)} (asked {ASKED}); "
            f"CPU of all processes {_ratio(medians, 'cpu ', name)}"
        )
    waited = [sum(each["storing"]) / sum(each["ours"]) for each in rounds]
    worked = [each["cpu storing"][0] / statistics.median(each["cpu ours"]) for each in rounds]
    console.print(
        f"waiting for rollouts and curves to be stored: {_shares(waited)} of the step (asked {ASKED_STORAGE:.0%}); "
        f"CPU of the thread that stores them: {_shares(worked)} of the step's"
    )
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    console.print(f"18 tasks x 8 episodes, {options.steps} steps a round, beta {options.beta:g}, 1 thread; {load}")


def _shares(values: list[float]) -> str:
    return f"{statistics.median(values):.1%} (rounds {', '.join(f'{value:.1%}' for value in values)})"


def _ratio(medians: dict[str, list[float]], kind: str, name: str) -> str:
    """`1.05 (rounds 1.03, 1.05, 1.09), 1,050 and 1,000 ms`"""
    mine, theirs = medians[f"{kind}ours"], medians[f"{kind}{name}"]
    ratios = [my / their for my, their in zip(mine, theirs, strict=True)]
    both = f"{1000 * statistics.median(mine):,.0f} and {1000 * statistics.median(theirs):,.0f} ms"
    return f"{statistics.median(ratios):.2f} (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)}), {both}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", type=int, default=2, help="first steps that do not count")
    parser.add_argument("--beta", type=float, default=0.01)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
