"""Training runs in processes of their own, with the CPU time that they and their env servers took."""

import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from typing import Any

from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT, get_settings
from benchmarks.cpu import tree_seconds
from benchmarks.training_runs import start_run


@dataclass(frozen=True, slots=True)
class Trained:
    """How a run ended."""

    name: str
    run_id: uuid.UUID
    status: str
    reason: str
    summary: dict[str, Any]
    seconds: float
    cpu_seconds: float
    """Of the trainer, the env servers and Postgres."""


def train_apart(version: EnvironmentVersion, name: str, configuration: TrainingConfiguration) -> Trained:
    """As a worker does it, one thread of torch."""
    return conduct_apart(start_run(version, configuration.resolved()), name)


def conduct_apart(run_id: uuid.UUID, name: str) -> Trained:
    """A run that a worker has taken up: until it ends or rests."""
    began, cpu_before = time.monotonic(), tree_seconds()
    log = get_settings().data / f"{run_id}.log"
    with log.open("ab") as output:
        command = [sys.executable, "-m", "workers.training.run", str(run_id)]
        ended = subprocess.run(command, cwd=PROJECT_ROOT, stdout=output, stderr=output, check=False)
    if ended.returncode:
        raise SystemExit(f"{name} ended badly:\n{log.read_text(errors='replace')[-4000:]}")
    with transaction() as session:
        run = session.get_one(Run, run_id)
        return Trained(
            name=name,
            run_id=run_id,
            status=str(run.status),
            reason=run.reason or "",
            summary=dict(run.summary),
            seconds=time.monotonic() - began,
            cpu_seconds=tree_seconds() - cpu_before,
        )
