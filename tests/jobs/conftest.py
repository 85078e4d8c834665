"""Job tests commit for real: a database of their own on the tests' server, a real Valkey, real worker processes."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from backend.db.models import Job, Run
from backend.db.session import forget_engine, transaction
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from backend.queue import enqueue, get_celery
from backend.settings import PROJECT_ROOT, get_settings
from tests.factories import make_run
from workers.jobs.registry import BODIES, Entry

TEST_BODIES = {
    "tests.write": Entry("tests.jobs.bodies:write"),
    "tests.wait": Entry("tests.jobs.bodies:wait"),
    "tests.fail": Entry("tests.jobs.bodies:fail"),
    "tests.refuse": Entry("tests.jobs.bodies:refuse"),
}


@pytest.fixture(scope="session")
def jobs_url(database_url: str) -> str:
    """A second migrated database: what job tests commit disturbs nobody."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE jobs")
    url = database_url.replace("/postgres?", "/jobs?")
    config = Config(PROJECT_ROOT / "alembic.ini")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, "head")
    return url


@pytest.fixture
def installation(jobs_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process and those that it starts use the jobs' database and the tests' Valkey."""
    monkeypatch.setenv("DATABASE_URL", jobs_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    for name, entry in TEST_BODIES.items():
        monkeypatch.setitem(BODIES, name, entry)
    _forget_everything()
    with get_celery().connection_for_write() as connection:
        get_celery().control.purge(connection)
    yield
    with transaction() as session:
        session.execute(text("TRUNCATE people, environments, policies, runs, jobs, workers CASCADE"))
    _forget_everything()


def _forget_everything() -> None:
    if get_celery.cache_info().currsize:
        get_celery().close()
    get_settings.cache_clear()
    get_celery.cache_clear()
    forget_engine()


@pytest.fixture
def ask(installation: None) -> Callable[..., uuid.UUID]:
    """Enqueue a job, with a run when asked; returns the job's id."""

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
        command = [sys.executable, "-m", "celery", "-A", "tests.jobs.celery_app", "worker", "-Q", "cpu", "-c", "1"]
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


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
