"""Carrying a job out, in this process: lease, outcome, attempts."""

import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select, update
from structlog.testing import capture_logs

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, RunStatus
from tests.tasks.conftest import job_of, run_of
from workers.tasks import leases
from workers.tasks.execute import INTERRUPT, execute, renewed_lease

Ask = Callable[..., uuid.UUID]


def test_a_job_runs_once_and_is_done(ask: Ask, tmp_path: Path) -> None:
    job_id = ask("tests.write", file=str(tmp_path / "file"))

    execute(job_id)
    execute(job_id)

    job = job_of(job_id)
    assert (job.status, job.attempts, job.lease_owner) == (JobStatus.DONE, 1, None)
    assert job.ended_at is not None
    assert (tmp_path / "file").read_text() == f"{os.getpid()} 1\n"


def test_a_message_for_an_unknown_job_is_let_go(installation: None) -> None:
    with capture_logs() as logs:
        execute(uuid.uuid4())

    assert [entry["event"] for entry in logs] == ["nothing to do for this wake-up"]
    with transaction() as session:
        assert session.scalars(select(Job)).all() == []


def test_a_job_that_is_leased_to_another_is_left_alone(ask: Ask, tmp_path: Path) -> None:
    job_id = ask("tests.write", file=str(tmp_path / "file"))
    assert leases.claim(job_id, "another") is not None

    execute(job_id)

    assert job_of(job_id).lease_owner is not None
    assert not (tmp_path / "file").exists()


def test_a_failure_is_kept_and_the_job_queued_again(ask: Ask, tmp_path: Path) -> None:
    job_id = ask("tests.fail", with_run=True, file=str(tmp_path / "file"))

    execute(job_id)

    job = job_of(job_id)
    assert (job.status, job.attempts) == (JobStatus.QUEUED, 1)
    assert "the disk is made of cheese (bodies.py:" in str(job.error)
    assert run_of(job_id).status is RunStatus.QUEUED


def test_a_job_that_always_fails_ends_failed_and_so_does_its_run(ask: Ask, tmp_path: Path) -> None:
    job_id = ask("tests.fail", with_run=True, max_attempts=3, file=str(tmp_path / "file"))

    for _ in range(5):
        execute(job_id)

    assert (job_of(job_id).status, job_of(job_id).attempts) == (JobStatus.FAILED, 3)
    assert len((tmp_path / "file").read_text().splitlines()) == 3
    run = run_of(job_id)
    assert run.status is RunStatus.FAILED
    assert "the disk is made of cheese" in str(run.reason)
    assert run.ended_at is not None


def test_what_a_person_must_mend_is_not_tried_again(ask: Ask, tmp_path: Path) -> None:
    job_id = ask("tests.refuse", with_run=True, file=str(tmp_path / "file"))

    execute(job_id)

    assert (job_of(job_id).status, job_of(job_id).attempts) == (JobStatus.FAILED, 1)
    assert run_of(job_id).reason == "This checkpoint was deleted."


def test_a_job_that_no_worker_knows_fails_with_its_name(ask: Ask) -> None:
    job_id = ask("evaluations.fly", with_run=True)

    execute(job_id)

    assert job_of(job_id).status is JobStatus.FAILED
    assert "evaluations.fly" in str(run_of(job_id).reason)


def test_an_interrupted_job_is_handed_back_and_the_attempt_does_not_count(ask: Ask, tmp_path: Path) -> None:
    job_id = ask("tests.wait", file=str(tmp_path / "file"), release=str(tmp_path / "never"))
    interrupter = threading.Thread(target=_interrupt_when_it_began, args=(tmp_path / "file",))
    interrupter.start()

    execute(job_id)

    interrupter.join()
    job = job_of(job_id)
    assert (job.status, job.attempts, job.lease_owner) == (JobStatus.QUEUED, 0, None)


def test_the_heartbeat_keeps_the_lease(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.05)
    job_id = ask("tests.write")
    taken = leases.claim(job_id, "here")
    assert taken is not None
    before = job_of(job_id).lease_until

    with renewed_lease(job_id, taken[1], threading.Event()):
        time.sleep(0.3)

    after = job_of(job_id).lease_until
    assert before is not None
    assert after is not None
    assert after > before


def test_a_job_whose_lease_was_lost_stops_and_leaves_the_row_alone(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.05)
    job_id = ask("tests.wait", file=str(tmp_path / "file"), release=str(tmp_path / "never"))
    thief = threading.Thread(target=_steal_when_it_began, args=(tmp_path / "file", job_id))
    thief.start()

    execute(job_id)

    thief.join()
    job = job_of(job_id)
    assert (job.status, job.lease_owner, job.attempts) == (JobStatus.LEASED, "thief", 1)


def _interrupt_when_it_began(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), INTERRUPT)


def _steal_when_it_began(file: Path, job_id: uuid.UUID) -> None:
    while not file.exists():
        time.sleep(0.01)
    with transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_owner="thief", lease_until=func.now()))
