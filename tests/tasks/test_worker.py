"""A real worker process with a real broker: the wake-up arrives, and the worker may be killed or stopped."""

import os
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from backend.core.queue import send_wake_up
from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.vocabulary import JobStatus, Queue
from tests.tasks.conftest import is_alive, is_done, job_of, run_of, wait_for
from workers.tasks import housekeeping

Ask = Callable[..., uuid.UUID]
StartWorker = Callable[[], subprocess.Popen[bytes]]

pytestmark = pytest.mark.slow


def test_a_worker_shows_what_it_can_do_runs_jobs_and_signs_off(
    ask: Ask, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start_worker()
    send_wake_up(uuid.uuid4(), Queue.CPU)  # for a job that is unknown, which does not stop it
    job_id = ask("tests.write", file=str(tmp_path / "file"))

    wait_for(lambda: is_done(job_id))

    pid, attempt = (tmp_path / "file").read_text().split()
    assert (int(pid) != os.getpid(), attempt) == (True, "1")

    monkeypatch.setattr(housekeeping, "RESEND_AFTER", housekeeping.RESEND_AFTER / 50)
    job_id = ask("tests.fail", with_run=True, max_attempts=3, file=str(tmp_path / "failed"))

    wait_for(lambda: housekeeping.resend_wake_ups() + 1 and job_of(job_id).status is JobStatus.FAILED)

    assert len((tmp_path / "failed").read_text().splitlines()) == 3
    assert "the disk is made of cheese" in str(run_of(job_id).reason)

    wait_for(lambda: _workers())
    (worker,) = _workers()
    assert worker.name == "w0@test"
    assert worker.queues == ["cpu"]
    assert worker.capabilities["cpus"] == len(os.sched_getaffinity(0))
    assert worker.capabilities["memory_mb"] > 100

    process.send_signal(signal.SIGTERM)
    process.wait(20)

    assert _workers() == []


def test_a_killed_workers_job_is_picked_up_by_another(ask: Ask, start_worker: StartWorker, tmp_path: Path) -> None:
    first = start_worker()
    job_id = ask("tests.wait", file=str(tmp_path / "file"), release=str(tmp_path / "release"))
    wait_for(lambda: (tmp_path / "file").exists())

    first.send_signal(signal.SIGKILL)
    first.wait()
    pid = int((tmp_path / "file").read_text().split()[0])
    wait_for(lambda: not is_alive(pid))  # the process in the pool ends with its worker
    (tmp_path / "release").touch()
    start_worker()
    with transaction() as session:  # nobody renews the lease; proof/test_kill waits until it runs out
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=func.now()))
    assert housekeeping.requeue_expired() == 1

    wait_for(lambda: is_done(job_id))
    lines = (tmp_path / "file").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2"]


def test_a_worker_that_is_told_to_end_hands_its_job_back_at_once(
    ask: Ask, start_worker: StartWorker, tmp_path: Path
) -> None:
    process = start_worker()
    job_id = ask("tests.wait", file=str(tmp_path / "file"), release=str(tmp_path / "release"))
    wait_for(lambda: (tmp_path / "file").exists())

    process.send_signal(signal.SIGTERM)
    process.wait(15)

    assert (job_of(job_id).status, job_of(job_id).attempts) == (JobStatus.QUEUED, 0)
    (tmp_path / "release").touch()
    start_worker()
    wait_for(lambda: is_done(job_id))


def _workers() -> list[Worker]:
    with transaction() as session:
        return list(session.scalars(select(Worker)))
