"""Each artifact store has an id, written once; workers report the one they use."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from backend.core import artifacts
from backend.core.queue import enqueue, send_wake_up
from backend.core.session import transaction
from backend.core.tables import Worker
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from backend.settings import get_settings
from tests.factories import make_run
from tests.tasks.conftest import is_done, job_of, run_of, wait_for
from workers.tasks.heartbeat import WorkerHeartbeat

Use = Callable[[str], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, committed_database: str) -> Use:
    def use(name: str) -> None:
        monkeypatch.setenv("PROCTOR_ARTIFACTS_URL", name if "://" in name else str(tmp_path / name))
        get_settings.cache_clear()

    return use


def test_a_store_keeps_its_id_and_another_has_its_own(use: Use) -> None:
    use("a")
    first = artifacts.read_store_id()
    assert artifacts.read_store_id() == first == artifacts.store_id()
    use("b")
    assert artifacts.read_store_id() != first
    use("a")
    assert artifacts.read_store_id() == first


def test_those_who_come_together_agree(use: Use) -> None:
    use("shared")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(artifacts.read_store_id())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert [path.name for path in Path(get_settings().artifacts_address).iterdir()] == ["store-id"]


def test_a_store_of_another_kind_has_an_id_too(use: Use) -> None:
    use("memory://store")
    assert artifacts.read_store_id() == artifacts.read_store_id()


def test_a_damaged_or_absent_store_is_none(use: Use, tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "store-id").write_text("../../etc/passwd")
    use("damaged")
    assert artifacts.store_id() is None
    (tmp_path / "file").write_text("no folder")
    use("file/below")
    assert artifacts.store_id() is None


def test_a_worker_reports_the_store_that_it_reads(use: Use, tmp_path: Path) -> None:
    use("a")
    presence = WorkerHeartbeat("cpu@here", ["cpu"])
    presence.report()
    assert _reported() == artifacts.read_store_id()
    (tmp_path / "a" / "store-id").write_text("damaged")
    presence.report()
    assert _reported() == ""


def _reported() -> str:
    with transaction() as session:
        worker = session.scalars(select(Worker).where(Worker.name == "cpu@here")).one()
        return str(worker.capabilities["artifacts"])


@pytest.mark.slow
def test_of_two_real_workers_only_the_one_that_reads_the_store_takes_the_job(
    installation: None,
    start_worker: Callable[[], "subprocess.Popen[bytes]"],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def in_store(name: str) -> None:
        monkeypatch.setenv("PROCTOR_ARTIFACTS_URL", str(tmp_path / name))
        get_settings.cache_clear()

    in_store("far")
    start_worker()
    wait_for(lambda: _workers() == {"w0@test"}, 60)
    in_store("here")
    with transaction() as session:
        run = make_run(session, status=RunStatus.QUEUED)
        arguments = {"file": str(tmp_path / "file")}
        job_id = enqueue(
            session, "tests.write", queue=Queue.CPU, run_id=run.id, arguments=arguments, reads_artifacts=True
        ).id
    wait_for(lambda: "access to this installation's artifacts" in run_of(job_id).progress.get("phase", ""), 60)
    assert (job_of(job_id).status, job_of(job_id).attempts) == (JobStatus.QUEUED, 0)
    start_worker()
    wait_for(lambda: _workers() == {"w0@test", "w1@test"}, 60)
    for _ in range(4):  # whichever of them hears of it
        send_wake_up(job_id, Queue.CPU)
    wait_for(lambda: is_done(job_id), 60)
    assert (tmp_path / "file").read_text().split()[1] == "1"


def _workers() -> set[str]:
    with transaction() as session:
        return set(session.scalars(select(Worker.name)))
