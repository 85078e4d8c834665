"""The whole way of a foreign package: cloned by the server or the command line, completed, published, evaluated."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from backend.cli.connection import connect
from backend.core.session import transaction
from backend.domain.vocabulary import Role, RolloutStatus, RunStatus
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.team.service import issue_local_token
from tests.envhost_fixture import HostProcess
from tests.environments.importing.packages import door_package
from tests.environments.importing.repository import Repository, served
from tests.factories import make_person
from tests.ops.commands import Command, command_line
from tests.proof.conftest import add_policy, asked, evaluate, work
from tests.web_fixtures import sign_in
from tests.web_server import web_of_installation, web_served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    with served(tmp_path) as found:
        found.commit({f"envs/doors/{path}": data for path, data in door_package().items()} | {"README.md": b"many"})
        yield found


@pytest.fixture
def application() -> FastAPI:
    return web_of_installation()


@pytest.fixture
def ada(installation: None, found_host: HostProcess, application: FastAPI) -> TestClient:
    """The browser of an administrator."""
    with transaction() as session:
        return sign_in(application, session, make_person(session, Role.ADMIN, "Ada"))


def test_a_repository_that_the_server_clones_becomes_an_evaluation_with_columns(
    ada: TestClient, repository: Repository
):
    sent = {"kind": "git", "url": repository.url, "path": "envs/doors"}
    started = asked(ada.post("/api/v1/imports", json=sent))
    assert work() == ["environments.import"]
    address = f"/api/v1/imports/{started['id']}"
    found = asked(ada.get(address))
    assert (found["status"], found["name"], found["report"]["starts"]) == ("completed", "doors", True)

    asked(ada.put(f"{address}/columns", json={"columns_from": "parts"}))
    asked(ada.post(f"{address}/environment", json={}))
    version = asked(ada.post("/api/v1/environments/doors/publish", json={"revision": 1, "check": False}))
    assert [column["name"] for column in version["columns"]][:2] == ["hit", "tidy"]

    run_id = evaluate(ada, version["id"], add_policy(ada, kind="scripted", script="random"), tasks=6)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        rollouts = session.scalars(select(Rollout).where(Rollout.run_id == run_id)).all()
    assert run.status is RunStatus.COMPLETED
    assert [rollout.status for rollout in rollouts] == [RolloutStatus.COMPLETED] * 6
    tidy = run.columns.index("tidy")
    assert {(rollout.columns or [])[tidy] for rollout in rollouts} == {0.25}


def test_the_page_clones_too_and_shows_a_wrong_address(ada: TestClient, repository: Repository):
    for path, told in (("envs/doors", "starts"), ("envs/maze", "no folder")):
        answer = ada.post("/imports", data={"kind": "git", "url": repository.url, "path": path})
        assert answer.status_code == 303
        work()
        assert told in ada.get(answer.headers["location"]).text


@pytest.fixture
def proctor(
    ada: TestClient, application: FastAPI, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """The command line of another machine, signed in to the test's web server."""
    with transaction() as session:
        token = issue_local_token(session)
    with web_served(application) as url, command_line(url, token, monkeypatch, capsys) as run:
        yield run


def test_the_command_line_clones_on_its_own_side(repository: Repository, proctor: Command):
    started = proctor("env", "import", f"file://{repository.folder}", "--path", "envs/doors", "--no-wait")
    assert started.status == 0
    work()
    found = connect().get(f"/imports/{started.json['id']}")
    assert (found["report"]["starts"], found["kind"]) == (True, "openenv")
    refused = proctor("env", "import", repository.url, "--path", "envs/maze")
    assert refused.status == 2
    assert "no folder 'envs/maze'" in refused.err
