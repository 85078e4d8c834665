"""Job tests commit for real: a database of their own on the tests' server, a real Valkey, real worker processes."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.core.queue import enqueue
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT
from tests.factories import make_run
from workers.tasks.registry import BODIES, JobBody

TEST_BODIES = {
    "tests.write": JobBody("tests.tasks.bodies:write"),
    "tests.wait": JobBody("tests.tasks.bodies:wait"),
    "tests.fail": JobBody("tests.tasks.bodies:fail"),
    "tests.refuse": JobBody("tests.tasks.bodies:refuse"),
}


@pytest.fixture(autouse=True)
def _test_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in TEST_BODIES.items():
        monkeypatch.setitem(BODIES, name, entry)


@pytest.fixture
def ask(installation: None) -> Callable[..., uuid.UUID]:
    """Enqueue a job, optionally with a run; return the job's id."""

    def ask(name: str, *, with_run: bool = False, max_attempts: int = 5, **arguments: object) -> uuid.UUID:
        with transaction() as session:
            run = make_run(session, status=RunStatus.QUEUED) if with_run else None
            job = enqueue(session, name, queue=Queue.CPU, run_id=run.id if run else None, arguments=arguments)
            job.max_attempts = max_attempts
        return job.id

    return ask


@pytest.fixture
def start_worker(installation: None, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a real Celery worker; all are ended after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        name = f"w{len(started)}"
        command = [sys.executable, "-m", "celery", "-A", "tests.tasks.celery_app", "worker", "-Q", "cpu", "-c", "1"]
        with (tmp_path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*command, "-n", f"{name}@test"], cwd=PROJECT_ROOT, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in started:
        process.wait(30)


def job_of(job_id: uuid.UUID) -> Job:
    with transaction() as session:
        return session.get_one(Job, job_id)


def run_of(job_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, session.get_one(Job, job_id).run_id)


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_done(job_id: uuid.UUID) -> bool:
    return job_of(job_id).status is JobStatus.DONE


def check_that_it_only_imported(server: int) -> None:
    """A fork server has no thread but those of native libraries that prepare for forks, and no connection."""
    folder = Path(f"/proc/{server}")
    threads = [(task / "comm").read_text().strip() for task in (folder / "task").iterdir()]
    others = [file.readlink().name for file in (folder / "fd").iterdir() if file.readlink() != Path("/dev/null")]

    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, threads
    assert {name.partition(":")[0] for name in others} <= {"fork-server.log", "socket"}, others
    assert len([name for name in others if name.startswith("socket:")]) == 1, others


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
