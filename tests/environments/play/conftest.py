"""Hand play with all of its parts: pages, rows, jobs and a real env host, on a separate database."""

import uuid
from collections.abc import Callable

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Role
from backend.environments.play import PlayView, play_view
from backend.environments.service import create_environment, publish_version
from backend.runs.tables import Run
from tests.envhost_fixture import HostProcess, package_files
from tests.web_fixtures import make_person, sign_in
from tests.web_server import web_of_installation
from workers.tasks.execute import execute

NAME = "counter"


@pytest.fixture
def installed(installation: None, found_host: HostProcess) -> None:
    """Jobs and pages commit for real, and workers find the env host."""


@pytest.fixture(scope="session")
def application() -> FastAPI:
    return web_of_installation()


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
    """Publish the counter package with extra statements in its reset and step."""

    def publish(**package: str) -> None:
        with transaction() as session:
            environment = create_environment(session, None, NAME, package_files(NAME, **package))  # type: ignore[arg-type]
            publish_version(session, None, environment, revision=1)

    return publish


@pytest.fixture
def counter(publish: Callable[..., None]) -> None:
    publish()


def work() -> int:
    """Run the queued jobs as a worker does and return their number."""
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
