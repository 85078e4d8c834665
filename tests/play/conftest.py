"""Hand play with all of its parts: pages, rows, jobs and a real env host, on a database of its own."""

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from backend.app import create_app
from backend.db.models import Job, Run
from backend.db.session import forget_engine, transaction
from backend.domain.vocabulary import JobStatus, Role
from backend.environments.play_view import PlayView, play_view
from backend.environments.service import create_environment, publish_version
from backend.queue import get_celery
from backend.settings import PROJECT_ROOT, get_settings
from tests.envhost_fixture import HostProcess, host_process, package_files
from tests.web_fixtures import make_person, sign_in
from workers.jobs.execute import execute

__all__ = ["host_process"]

NAME = "counter"


@pytest.fixture(scope="session")
def play_url(database_url: str) -> str:
    """A migrated database: jobs and pages commit for real."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE play")
    url = database_url.replace("/postgres?", "/play?")
    config = Config(PROJECT_ROOT / "alembic.ini")
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    command.upgrade(config, "head")
    return url


@pytest.fixture
def installed(
    play_url: str, redis_url: str, host_process: HostProcess, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("DATABASE_URL", play_url)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("PROCTOR_ENVHOST_URL", host_process.address)
    _forget()
    yield
    with transaction() as session:
        session.execute(text("TRUNCATE people, environments, policies, runs, jobs, workers CASCADE"))
    _forget()


def _forget() -> None:
    get_settings.cache_clear()
    get_celery.cache_clear()
    forget_engine()


@pytest.fixture(scope="session")
def application() -> FastAPI:
    return create_app()


@pytest.fixture
def browser_of(installed: None, application: FastAPI) -> Callable[..., TestClient]:
    """`browser_of("ada")`: a browser of an author of this name."""

    def browser(name: str, role: Role = Role.AUTHOR) -> TestClient:
        with transaction() as session:
            return sign_in(application, session, make_person(session, role, f"{name}@example.org", name=name))

    return browser


@pytest.fixture
def ada(browser_of: Callable[..., TestClient]) -> TestClient:
    return browser_of("ada")


@pytest.fixture
def publish(installed: None) -> Callable[..., None]:
    """Publish the counter package, with statements of one's own in its reset and step."""

    def publish(**package: str) -> None:
        with transaction() as session:
            environment = create_environment(session, None, NAME, package_files(NAME, **package))  # type: ignore[arg-type]
            publish_version(session, None, environment, revision=1)

    return publish


@pytest.fixture
def counter(publish: Callable[..., None]) -> None:
    publish()


def work() -> int:
    """Carry out what is queued, as a worker does; how many jobs there were."""
    with transaction() as session:
        waiting = session.scalars(select(Job.id).where(Job.status == JobStatus.QUEUED).order_by(Job.id)).all()
    for job_id in waiting:
        execute(job_id)
    return len(waiting)


def begin(browser: TestClient, **task: object) -> uuid.UUID:
    """Start an episode and let the environment open it."""
    answer = browser.post(f"/environments/{NAME}/play", data=task)
    assert answer.status_code == 303, answer.text
    assert work() == 1
    return uuid.UUID(answer.headers["location"].rpartition("/")[2])


def reply(browser: TestClient, run_id: uuid.UUID, text: str, **fields: object) -> int:
    """Send a reply, let the environment answer; the status of the page's answer."""
    answer = browser.post(f"/environments/{NAME}/play/{run_id}/reply", data={"reply": text, **fields})
    work()
    return answer.status_code


def view(run_id: uuid.UUID) -> PlayView:
    with transaction() as session:
        return play_view(session, NAME, run_id)


def runs() -> list[Run]:
    with transaction() as session:
        return list(session.scalars(select(Run).order_by(Run.id)))
