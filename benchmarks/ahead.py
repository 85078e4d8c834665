"""Measure a GRPO step that samples ahead (`grpo.staleness=1`) against one that takes turns, on tic-tac-toe.

Peers: the same training run with `grpo.staleness=0`, from the same weights and with the same seed.
Units: seconds and CPU seconds per step; tokens/s; share of the learning time; held-out reward.
Repeats: 3 seeds of 40 steps, 18 tasks × 8 episodes, both sides in alternation; 500 held-out tasks at the end.

The second part has 20 steps in an environment that waits 0.2 s in every turn, like one that runs programs. In the
first part, the gain needs a free core: sampling and learning have one thread each, and the env host, Postgres and
storage want some of the second core. CPU seconds count all processes. The first two steps and the last do not count.
"""

import statistics
import uuid
from collections.abc import Iterator

import torch
from sqlalchemy import select
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.environments.library import load_package
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import MetricPoint
from benchmarks.harness import Measure, Options, import_files, installation
from benchmarks.training import Values, intervals, train_run, warm_up

REPEATS = 3
LIMIT_SECONDS = 3600
SIDES = {"turns": 0, "ahead": 1}
WAIT_SECONDS = 0.2
PLACE, FILE = "        self._turns += 1\n", "server/tictactoe_environment.py"
CURVES = ("tokens_per_second", "ahead/overlap", "ahead/seconds", "seconds/rollouts", "seconds/step", "ratio/max")


def measure(options: Options) -> Iterator[Measure]:
    disable_progress_bar()
    torch.set_num_threads(1)
    files = load_package("tictactoe")
    assert PLACE in files[FILE]
    waiting = files[FILE].replace(PLACE, f'{PLACE}        __import__("time").sleep({WAIT_SECONDS})\n')
    with installation():
        version = import_files("tictactoe", files)
        checkpoint = warm_up(version, options)
        yield from _compare("", version, checkpoint, options.size(40, 6), options)
        manifest = files["openenv.yaml"].replace("name: tictactoe\n", "name: waiting\n", 1)
        version = import_files("waiting", {**files, "openenv.yaml": manifest, FILE: waiting})
        yield from _compare(", environment that waits", version, checkpoint, options.size(20, 6), options)


def _compare(
    suffix: str, version: EnvironmentVersion, checkpoint: Checkpoint, steps: int, options: Options
) -> Iterator[Measure]:
    found: dict[str, Values] = {side: {} for side in SIDES}
    for seed in range(options.repeats):
        for side, staleness in SIDES.items():
            choices = {
                "recipe": "grpo",
                "seed": seed,
                "model": {"source": "checkpoint", "checkpoint": checkpoint.id},
                "grpo": {"steps": steps, "tasks_per_step": 18, "group_size": 8, "staleness": staleness},
                "heldout": {"every": steps, "tasks": options.size(500, 50)},
                "checkpoints": {"every": steps},
            }
            run_id, times = train_run(version, choices)
            points = _points_of(run_id)
            values = {
                "wall": statistics.median(intervals(times.wall)[:-1]),
                "cpu": statistics.median(intervals(times.cpu)[:-1]),
                "reward": points["heldout/reward"][-1],
                **{name: statistics.median(points[name][2:]) for name in CURVES if name in points},
            }
            for name, value in values.items():
                found[side].setdefault(name, []).append(value)
    ours, theirs = found["ahead"], found["turns"]
    parts = (
        ("sampling", ours["ahead/seconds"]),
        ("waiting for it", ours["seconds/rollouts"]),
        ("step in turns", theirs["seconds/step"]),
        ("of which sampling", theirs["seconds/rollouts"]),
    )
    note = ", ".join(f"{title} {statistics.median(values):.2f} s" for title, values in parts)
    yield Measure(f"step{suffix}", "s", ours["wall"], theirs["wall"], note=note)
    for name, title, unit, is_better in (
        ("cpu", "CPU of a step", "s", False),
        ("tokens_per_second", "tokens", "tokens/s", True),
        ("ratio/max", "highest importance ratio of a step", "ratio", False),
        ("reward", "held-out reward after the last step", "reward", True),
    ):
        yield Measure(f"{title}{suffix}", unit, ours[name], theirs[name], higher_is_better=is_better)
    title = f"share of learning time with sampling{suffix}"
    yield Measure(title, "share", ours["ahead/overlap"], higher_is_better=True)


def _points_of(run_id: uuid.UUID) -> Values:
    """Return the values of the run's curves in the order of steps."""
    points: Values = {}
    statement = select(MetricPoint).where(MetricPoint.run_id == run_id).order_by(MetricPoint.step)
    with transaction() as session:
        for point in session.scalars(statement):
            points.setdefault(point.name, []).append(point.value or 0.0)
    return points
