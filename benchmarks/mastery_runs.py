"""Training runs in processes of their own, with the CPU time that they and their env servers took."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.db.models import EnvironmentVersion, Run
from backend.db.session import transaction
from backend.domain.training import TrainingConfiguration
from backend.settings import PROJECT_ROOT, get_settings
from benchmarks.training_runs import start_run

_TICKS = os.sysconf("SC_CLK_TCK")


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
    """Of the trainer and of the env servers, without Postgres."""


def train_apart(version: EnvironmentVersion, name: str, configuration: TrainingConfiguration) -> Trained:
    """As a worker does it, one thread of torch."""
    run_id = start_run(version, configuration.resolved())
    began, cpu_before = time.monotonic(), _cpu_seconds_of_descendants()
    log = get_settings().data / f"{run_id}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "workers.training.run", str(run_id)]
        process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} ended badly:\n{log.read_text(errors='replace')[-4000:]}")
    servers = max(0.0, _cpu_seconds_of_descendants() - cpu_before)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        return Trained(
            name=name,
            run_id=run_id,
            status=str(run.status),
            reason=run.reason or "",
            summary=dict(run.summary),
            seconds=time.monotonic() - began,
            cpu_seconds=usage.ru_utime + usage.ru_stime + servers,
        )


def _cpu_seconds_of_descendants() -> float:
    """User and system time of all processes that this one started and that are alive, with their own dead children."""
    parents, ticks = {}, {}
    for process, fields in _stats():
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    grows = True
    while grows:
        further = {process for process, parent in parents.items() if parent in own} - own
        own |= further
        grows = bool(further)
    return sum(ticks[process] for process in own - {os.getpid()}) / _TICKS


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Of each process the fields of `/proc/…/stat` after its name, state first."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
