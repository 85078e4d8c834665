"""The complete path of a person: JSON and pages, rows, jobs run as a worker does, a real env host."""

import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Role
from backend.runs.tables import Run
from tests.envhost_fixture import HostProcess, find_host, package_files, start_host
from tests.factories import make_person
from tests.web_fixtures import admin, app, client_for, portal, sign_in, stranger, trainer, viewer, whole_app
from tests.web_server import web_of_installation
from workers.rollouts import engine
from workers.tasks import evaluations
from workers.tasks.execute import execute

__all__ = ["admin", "app", "client_for", "portal", "stranger", "trainer", "viewer", "whole_app"]

NAME = "counter"
START_SECONDS = 4
"""For a package to start: short, so that one that hangs is found soon."""
EPISODE = "  episode: {max_turns: 4, step_timeout_seconds: 1, episode_timeout_seconds: 20}\n"


@pytest.fixture(scope="session")
def proof_host() -> Iterator[HostProcess]:
    data = Path(tempfile.mkdtemp(prefix="pp-"))
    host = start_host(data, "--start-seconds", str(START_SECONDS))
    yield host
    host.stop()
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is played again as often as ever, but soon."""
    monkeypatch.setattr(engine, "RETRY_SECONDS", engine.RETRY_SECONDS / 25)
    monkeypatch.setattr(evaluations, "REPEAT_AFTER_SECONDS", evaluations.REPEAT_AFTER_SECONDS / 25)


@pytest.fixture(scope="session")
def application() -> FastAPI:
    return web_of_installation()


@pytest.fixture
def ada(
    installation: None, proof_host: HostProcess, application: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> TestClient:
    """The browser of an administrator."""
    find_host(proof_host, monkeypatch)
    with transaction() as session:
        return sign_in(application, session, make_person(session, Role.ADMIN, "Ada"))


@pytest.fixture
def publish(ada: TestClient) -> Callable[..., str]:
    """Publish the counter package, bent in one place; gives the version's id."""

    def publish(*, manifest: Callable[[str], str] = lambda text: text, **package: Any) -> str:
        files = package_files(NAME, **package)
        files["openenv.yaml"] = manifest(files["openenv.yaml"] + EPISODE)
        asked(ada.post("/api/v1/environments", json={"name": NAME, "files": files}))
        return str(asked(ada.post(f"/api/v1/environments/{NAME}/publish", json={"revision": 1, "check": False}))["id"])

    return publish


@pytest.fixture
def three(ada: TestClient) -> str:
    """The id of a policy that always says 3: one step ends the counter's episode."""
    return add_policy(ada, kind="scripted", script="constant", constant="3")


def add_policy(ada: TestClient, name: str = "three", **fields: str) -> str:
    return str(asked(ada.post("/api/v1/policies", json={"name": name, **fields}))["id"])


def start(ada: TestClient, version_id: str, policy_id: str, **plan: object) -> uuid.UUID:
    """A queued evaluation."""
    body = {"version_id": version_id, "policy_id": policy_id, "tasks": 2, **plan}
    return uuid.UUID(asked(ada.post("/api/v1/evaluations", json=body))["id"])


def evaluate(ada: TestClient, version_id: str, policy_id: str, **plan: object) -> uuid.UUID:
    """A completed evaluation."""
    run_id = start(ada, version_id, policy_id, **plan)
    work()
    return run_id


def work() -> list[str]:
    """Run the queued jobs, and the jobs that they queue, as workers do; return the names of the jobs."""
    done = []
    while waiting := _waiting():
        for job_id, name in waiting:
            execute(job_id)
            done.append(name)
    return done


def _waiting() -> list[tuple[uuid.UUID, str]]:
    with transaction() as session:
        found = session.execute(select(Job.id, Job.name).where(Job.status == JobStatus.QUEUED).order_by(Job.id))
        return [(row.id, row.name) for row in found]


def asked(answer: Any) -> dict[str, Any]:
    """The JSON of an answer that must be a good one."""
    assert answer.status_code < 300, answer.text
    return dict(answer.json())


def seen(ada: TestClient, address: str) -> str:
    """The visible text of a page."""
    answer = ada.get(address)
    assert answer.status_code == 200
    return unescape(answer.text)


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def counted(ada: TestClient, run_id: uuid.UUID) -> dict[str, int]:
    """How many rollouts of each status the run stored."""
    items = asked(ada.get(f"/api/v1/rollouts?run_id={run_id}&limit=500"))["items"]
    counts: dict[str, int] = {}
    for item in items:
        counts[item["status"]] = counts.get(item["status"], 0) + 1
    return counts


def address(path: str, ids: dict[str, object]) -> str:
    """The path with an id for each parameter: by the parameter's name, by the noun before it, or one of nothing."""

    def value(found: re.Match[str]) -> str:
        noun = path[: found.start()].rstrip("/").rpartition("/")[2]
        return str(ids.get(found[1], ids.get(noun, uuid.UUID(int=7))))

    return re.sub(r"\{(\w+)(?::\w+)?\}", value, path)
