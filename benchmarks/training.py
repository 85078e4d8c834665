"""Measure a GRPO step and its sampling.

Peers: TRL's GRPOTrainer in one process, with transformers' `generate`; the same with Proctor's sampler.
Units: seconds and CPU seconds per step; tokens/s and tokens per CPU second; share of a step.
Repeats: 3 training runs of 10 steps and 3 rounds of 144 episodes, all sides in alternation.

All sides have the same weights, tasks and settings: tic-tac-toe, 18 tasks × 8 episodes, 0.1 million parameters, one
thread. As in the preset `tictactoe-demo`, two env servers have room for all episodes of a step at a time. Proctor's
side is a whole training run with env host, sandbox, stored rollouts, detectors and alarms; the peer stores nothing. CPU
seconds count all processes, and depend less than the clock on what else the machine is doing.
"""

import gc
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from sqlalchemy import select
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.imports import without_collection
from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Group, Task
from backend.runs.tables import MetricPoint
from benchmarks import bare_trl
from benchmarks.harness import Measure, Options, create_training_run, import_built_in, installation, tree_cpu_seconds
from workers.models.load import load_folder
from workers.models.policy import LocalPolicy
from workers.storage.recorder import RunRecorder
from workers.training import run as training_run
from workers.training.assignment import read_assignment
from workers.training.curriculum import single_plans
from workers.training.env_pool import open_env_pool
from workers.training.reporting import BackgroundWriter

REPEATS = 3
SERVERS = 2
SKIPPED_STEPS = 2
"""First steps, which do not count."""
PEERS = {"generate": bare_trl.with_generate, "Proctor's sampler": bare_trl.with_cache}

Values = dict[str, list[float]]
"""One value per repeat, by side."""


def measure(options: Options) -> Iterator[Measure]:
    disable_progress_bar()
    torch.set_num_threads(1)
    with installation() as folder:
        version = import_built_in("tictactoe")
        checkpoint = warm_up(version, options)
        weights = get_folder(checkpoint.artifact, folder / "weights")
        yield from _steps(version, checkpoint, weights, options)
        yield from _sampling(version, checkpoint, weights, options)


# Steps


def _steps(version: EnvironmentVersion, checkpoint: Checkpoint, weights: Path, options: Options) -> Iterator[Measure]:
    steps = options.size(10, 4)
    never = steps + 1
    choices = {
        "recipe": "grpo",
        "model": {"source": "checkpoint", "checkpoint": checkpoint.id},
        "grpo": {"steps": steps, "tasks_per_step": 18, "group_size": 8, "beta": 0.01},
        "heldout": {"every": never, "tasks": 1},
        "checkpoints": {"every": never},
        "servers": SERVERS,
    }
    wall: Values = {}
    cpu: Values = {}
    waiting, storing, parts = [], [], []
    for _ in range(options.repeats):
        run_id, times = train_run(version, choices)
        sides: dict[str, Times | bare_trl.StepTimes] = {"ours": times}
        tasks, grpo = _tasks_of(run_id), TrainingConfiguration.model_validate(choices).grpo
        for name, make_sample in PEERS.items():
            with tempfile.TemporaryDirectory() as scratch:
                sides[name] = bare_trl.train(weights, tasks, grpo, Path(scratch), make_sample)
        for name, side in sides.items():
            wall.setdefault(name, []).append(statistics.median(intervals(side.wall)))
            cpu.setdefault(name, []).append(statistics.median(intervals(side.cpu)))
        waiting.append(sum(times.waited[SKIPPED_STEPS:]) / sum(intervals(times.wall)))
        storing.append(times.storing_cpu / len(times.wall) / cpu["ours"][-1])
        parts.append(_parts_of(run_id))
    for name in PEERS:
        target = 1.03 if name == "generate" else None
        yield Measure(f"step (peer: TRL with {name})", "s", wall["ours"], wall[name], target_ratio=target)
        yield Measure(f"CPU of a step (peer: TRL with {name})", "s", cpu["ours"], cpu[name])
    note = ", ".join(f"{part} {1000 * seconds:,.0f} ms" for part, seconds in parts[0].items() if seconds > 0.0005)
    yield Measure("step", "s", wall["ours"], note=note)
    yield Measure("waiting for stored rollouts, share of a step", "share", waiting, target=0.03)
    yield Measure("storing thread, share of a step's CPU", "share", storing)


def intervals(ends: list[float]) -> list[float]:
    """Return the time between the ends of steps, without the first ones."""
    return [after - before for before, after in zip(ends[SKIPPED_STEPS:], ends[SKIPPED_STEPS + 1 :], strict=False)]


@dataclass(slots=True)
class Times:
    """Measurements of a training run's recorder."""

    wall: list[float] = field(default_factory=list)
    """When each GRPO step ended, with everything stored."""
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of all processes until then."""
    waited: list[float] = field(default_factory=list)
    """Seconds per step that training waited until rollouts, curves and progress were stored."""
    storing_cpu: float = 0.0
    """CPU seconds of the thread that stores them, over the whole run."""
    pending: float = 0.0


@contextmanager
def _timed() -> Iterator[Times]:
    """Make training runs in this process measure their steps and their storage."""
    times, wait, write = Times(), BackgroundWriter.wait, BackgroundWriter.write

    class TimedRecorder(RunRecorder):
        def progress(self, *, phase: str, done: int, total: int, **more: Any) -> None:
            super().progress(phase=phase, done=done, total=total, **more)
            if phase == "grpo":
                times.wall.append(time.perf_counter())
                times.cpu.append(tree_cpu_seconds())
                times.waited.append(times.pending)
                times.pending = 0.0

    def timed_wait(writer: BackgroundWriter) -> None:
        began = time.perf_counter()
        wait(writer)
        times.pending += time.perf_counter() - began

    def timed_write(writer: BackgroundWriter, work: Callable[[], None]) -> None:
        def timed_work() -> None:
            began = time.thread_time()
            work()
            times.storing_cpu += time.thread_time() - began

        write(writer, timed_work)

    recorder = patch.object(training_run, "RunRecorder", TimedRecorder)
    with (
        recorder,
        patch.object(BackgroundWriter, "wait", timed_wait),
        patch.object(BackgroundWriter, "write", timed_write),
    ):
        yield times


def warm_up(version: EnvironmentVersion, options: Options) -> Checkpoint:
    """Train a policy that plays legal games of several turns, and return its checkpoint."""
    sft = {"episodes": options.size(2000, 1000), "steps": options.size(400, 300), "batch": 32}
    run_id, _ = train_run(version, {"recipe": "sft", "sft": sft, "heldout": {"tasks": 20}})
    with transaction() as session:
        return session.scalars(select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.stage == "sft")).one()


def train_run(version: EnvironmentVersion, choices: dict[str, Any]) -> tuple[uuid.UUID, Times]:
    run_id = create_training_run(version, TrainingConfiguration.model_validate(choices)).id
    with _timed() as times, _collecting():
        outcome = training_run.train(run_id)
    if outcome.status is not RunStatus.COMPLETED:
        raise RuntimeError(f"the training run ended {outcome.status}: {outcome.reason}")
    return run_id, times


@contextmanager
def _collecting() -> Iterator[None]:
    """Collect garbage as a process of `workers.begin` does. Peers keep Python's own settings."""
    with without_collection():
        pass
    try:
        yield
    finally:
        gc.unfreeze()


def _parts_of(run_id: uuid.UUID) -> dict[str, float]:
    """Return the median seconds of each part of a step, from the run's own curves."""
    parts: dict[str, list[float]] = {}
    of_run = MetricPoint.run_id == run_id, MetricPoint.name.like("seconds/%"), MetricPoint.step > SKIPPED_STEPS
    with transaction() as session:
        for name, value in session.execute(select(MetricPoint.name, MetricPoint.value).where(*of_run)):
            parts.setdefault(name.removeprefix("seconds/"), []).append(value or 0.0)
    return {name: statistics.median(values) for name, values in sorted(parts.items())}


def _tasks_of(run_id: uuid.UUID) -> list[tuple[int, int]]:
    """Return (seed, level) of each group in the order of training."""
    statement = (
        select(Task.seed, Task.level)
        .join(Group, Group.task_id == Task.id)
        .where(Group.run_id == run_id, Group.phase == Phase.TRAIN)
        .order_by(Group.training_step, Group.ordinal)
    )
    with transaction() as session:
        return [(seed, level) for seed, level in session.execute(statement)]


# Sampling


def _sampling(
    version: EnvironmentVersion, checkpoint: Checkpoint, weights: Path, options: Options
) -> Iterator[Measure]:
    """Play the same games: as training does, with TRL's generation, and with Proctor's sampler in TRL's place."""
    model, tokenizer = load_folder(weights)
    chosen = {"model": {"source": "checkpoint", "checkpoint": checkpoint.id}, "servers": SERVERS}
    run = create_training_run(version, TrainingConfiguration.model_validate(chosen))
    assignment = read_assignment(run.id)
    plans = single_plans(assignment.envs, options.size(144, 36))
    tasks = [(plan.task.seed, plan.task.level) for plan in plans]
    policy = LocalPolicy(model, tokenizer, temperature=1.0, lockstep=True)
    with open_env_pool(assignment.envs, assignment.configuration) as env_pool, tempfile.TemporaryDirectory() as scratch:

        def in_training() -> int:
            with _collecting():
                rollouts = env_pool.play_in_lockstep(plans, policy, phase=Phase.TRAIN, seed=0)
            return sum(rollout.tokens_out for rollout in rollouts)

        def in_process(sample: bare_trl.Sample) -> Callable[[], int]:
            return lambda: sum(sum(episode.mask) for episode in bare_trl.play(tokenizer, tasks, sample))

        sides: dict[str, Callable[[], int]] = {
            "training": in_training,
            "TRL": in_process(bare_trl.with_trl(model, tokenizer, Path(scratch))),
            "sampler": in_process(bare_trl.with_cache(model, tokenizer, 1.0)),
        }
        wall: Values = {name: [] for name in sides}
        cpu: Values = {name: [] for name in sides}
        for round_number in range(options.repeats + 1):
            for name, play in sides.items():
                began, spent = time.perf_counter(), tree_cpu_seconds()
                tokens = play()
                if round_number:  # the first round warms up
                    wall[name].append(tokens / (time.perf_counter() - began))
                    cpu[name].append(tokens / (tree_cpu_seconds() - spent))
        env_pool.close_policy(policy)
    for name, title, target in (("sampler", "sampler alone", 1.4), ("training", "with its environment server", 1.5)):
        peer = f"{title} (peer: TRL's generation)"
        yield Measure(peer, "tokens/s", wall[name], wall["TRL"], higher_is_better=True, target_ratio=target)
        yield Measure(f"{peer}, by CPU", "tokens/CPU s", cpu[name], cpu["TRL"], higher_is_better=True)
