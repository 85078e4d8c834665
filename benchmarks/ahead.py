"""Measure a GRPO step that samples ahead (`grpo.staleness=1`) against one that takes turns, on tic-tac-toe.

Peers: the same training run with `grpo.staleness=0`, from the same weights and with the same seed.
Units: seconds and CPU seconds per step; tokens/s; share of the learning time; held-out reward.
Repeats: 3 seeds of 40 steps, 18 tasks × 8 episodes, both sides in alternation; 500 held-out tasks at the end.

The gain needs a free core: sampling and learning have one thread each, and the env host, Postgres and storage want some
of the second core. CPU seconds count all processes. Two steps without a predecessor and the last one do not count.
"""

import statistics
import uuid
from collections.abc import Iterator

import torch
from sqlalchemy import select
from transformers.utils.logging import disable_progress_bar

from backend.core.session import transaction
from backend.runs.tables import MetricPoint
from benchmarks.harness import Measure, Options, import_built_in, installation
from benchmarks.training import Values, intervals, train_run, warm_up

REPEATS = 3
SIDES = {"turns": 0, "ahead": 1}
CURVES = ("tokens_per_second", "ahead/overlap", "ahead/seconds", "seconds/rollouts", "seconds/step", "ratio/max")


def measure(options: Options) -> Iterator[Measure]:
    disable_progress_bar()
    torch.set_num_threads(1)
    steps = options.size(40, 6)
    found: dict[str, Values] = {side: {} for side in SIDES}
    with installation():
        version = import_built_in("tictactoe")
        checkpoint = warm_up(version, options)
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
    parts = ", ".join(
        f"{title} {statistics.median(values):.2f} s"
        for title, values in (
            ("sampling", ours["ahead/seconds"]),
            ("waiting for it", ours["seconds/rollouts"]),
            ("step when taking turns", theirs["seconds/step"]),
            ("of which sampling", theirs["seconds/rollouts"]),
        )
    )
    yield Measure("step", "s", ours["wall"], theirs["wall"], note=parts)
    yield Measure("CPU of a step", "s", ours["cpu"], theirs["cpu"])
    yield Measure("tokens", "tokens/s", ours["tokens_per_second"], theirs["tokens_per_second"], higher_is_better=True)
    yield Measure("learning time during which sampling ran", "share", ours["ahead/overlap"], higher_is_better=True)
    yield Measure("highest importance ratio of a step", "ratio", ours["ratio/max"], theirs["ratio/max"])
    yield Measure("held-out reward after the last step", "reward", ours["reward"], theirs["reward"], True)


def _points_of(run_id: uuid.UUID) -> Values:
    """Return the values of the run's curves in the order of steps."""
    points: Values = {}
    statement = select(MetricPoint).where(MetricPoint.run_id == run_id).order_by(MetricPoint.step)
    with transaction() as session:
        for point in session.scalars(statement):
            points.setdefault(point.name, []).append(point.value or 0.0)
    return points
