"""Training runs of the product for a measurement: a warmed-up checkpoint, then GRPO whose recorder keeps the time."""

import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from sqlalchemy import select

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, PolicyKind, RunKind, RunStatus
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Task
from backend.runs.tables import MetricPoint, Run
from benchmarks.cpu import tree_seconds
from workers.storage.recorder import RunRecorder
from workers.training.background_writer import Behind
from workers.training.run import train

WARM_UP: dict[str, Any] = {
    "recipe": "sft",
    "sft": {"episodes": 2000, "steps": 400, "batch": 32},
    "heldout": {"tasks": 20},
}


@dataclass(slots=True)
class Times:
    """What one run's recorder saw."""

    steps: list[float] = field(default_factory=list)
    """When each GRPO step was over, all of its storage included."""
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of all processes until then."""
    stored_seconds: list[float] = field(default_factory=list)
    """Of each step: how long the training waited for rollouts, curves and progress to be in Postgres."""
    storing_cpu: float = 0.0
    """CPU seconds of the thread that stores them, in all."""
    pending: float = 0.0


def environment(name: str) -> EnvironmentVersion:
    """A built-in one, imported."""
    with transaction() as session:
        version = import_package(session, name, load_package(name))
        assert version is not None, "the database was empty"
        return version


def start_run(version: EnvironmentVersion, choices: dict[str, Any]) -> uuid.UUID:
    """A run that a worker has taken up."""
    configuration = TrainingConfiguration.model_validate(choices)
    manifest = Manifest.model_validate(version.manifest)
    with transaction() as session:
        policy = Policy(name=f"measured {new_id()}", kind=PolicyKind.LOCAL, configuration={})
        session.add(policy)
        session.flush()
        run = Run(
            kind=RunKind.TRAINING,
            name="measured",
            status=RunStatus.RUNNING,
            version_id=version.id,
            policy_id=policy.id,
            checkpoint_id=configuration.model.checkpoint,
            configuration=configuration.resolved(),
            seed=configuration.seed,
            columns=manifest.column_names,
            weights=[column.weight for column in manifest.columns],
            attempt=1,
        )
        session.add(run)
        session.flush()
        return run.id


def warmed_up(version: EnvironmentVersion) -> Checkpoint:
    """A policy that plays legal games of several turns."""
    run_id = start_run(version, WARM_UP)
    _train(run_id)
    with transaction() as session:
        of_run = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.stage == "sft")
        return session.scalars(of_run).one()


def timed_run(version: EnvironmentVersion, choices: dict[str, Any]) -> tuple[uuid.UUID, Times]:
    run_id = start_run(version, choices)
    with _timed() as times:
        _train(run_id)
    return run_id, times


def _train(run_id: uuid.UUID) -> None:
    outcome = train(run_id)
    if outcome.status is not RunStatus.COMPLETED:
        raise SystemExit(f"the training run ended {outcome.status}: {outcome.reason}")


@contextmanager
def _timed() -> Iterator[Times]:
    """Training runs write through a recorder that keeps the time."""
    times = Times()

    class TimedRecorder(RunRecorder):
        def progress(self, *, phase: str, done: int, total: int, **more: Any) -> None:
            super().progress(phase=phase, done=done, total=total, **more)
            if phase == "grpo":
                times.steps.append(time.perf_counter())
                times.cpu.append(tree_seconds())
                times.stored_seconds.append(times.pending)
                times.pending = 0.0

    wait, write = _counting(Behind.wait, times), Behind.write

    def timed_write(behind: Behind, work: Any) -> None:
        def timed_work() -> None:
            began = time.thread_time()
            work()
            times.storing_cpu += time.thread_time() - began

        write(behind, timed_work)

    changed = {"wait": wait, "write": timed_write}
    with patch("workers.training.run.RunRecorder", TimedRecorder), patch.multiple(Behind, **changed):
        yield times


def _counting(method: Any, times: Times) -> Any:
    def counted(*arguments: Any, **named: Any) -> Any:
        with _counted(times):
            return method(*arguments, **named)

    return counted


@contextmanager
def _counted(times: Times) -> Iterator[None]:
    began = time.perf_counter()
    yield
    times.pending += time.perf_counter() - began


def split_of(run_id: uuid.UUID, skip: int) -> dict[str, float]:
    """Median seconds of each part of a step, as the run's own curves say."""
    statement = select(MetricPoint.name, MetricPoint.value).where(
        MetricPoint.run_id == run_id, MetricPoint.name.like("seconds/%"), MetricPoint.step > skip
    )
    parts: dict[str, list[float]] = defaultdict(list)
    with transaction() as session:
        for name, value in session.execute(statement):
            parts[name.removeprefix("seconds/")].append(value or 0.0)
    return {name: statistics.median(values) for name, values in sorted(parts.items())}


def tasks_of(run_id: uuid.UUID) -> list[tuple[int, int]]:
    """(seed, level) of each group in the order of training."""
    statement = (
        select(Task.seed, Task.level)
        .join(Group, Group.task_id == Task.id)
        .where(Group.run_id == run_id, Group.phase == Phase.TRAIN)
        .order_by(Group.training_step, Group.ordinal)
    )
    with transaction() as session:
        return [(seed, level) for seed, level in session.execute(statement)]
