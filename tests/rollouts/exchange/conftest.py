"""An installation that commits, its API signed in to, and a run with all that a rollout can hold."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from backend.core.session import transaction
from backend.domain.vocabulary import PolicyKind, Role
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.team.tables import ApiToken
from backend.web.identity import hash_secret
from tests.factories import make_environment, make_environment_version, make_person, make_policy, make_run
from tests.rollouts.exchange.rollouts import store_rich
from tests.web_fixtures import *  # noqa: F403
from tests.web_server import web_of_installation
from workers.tasks.rollout_imports import import_file

Import = Callable[..., dict[str, Any]]


@pytest.fixture
def api(installation: None) -> Iterator[TestClient]:
    """Signed in as a trainer of an installation that commits."""
    with transaction() as session:
        person = make_person(session, Role.ADMIN)
        token = hash_secret("pt_x")
        session.add(ApiToken(person_id=person.id, name="t", prefix="pt_", token_hash=token, role=Role.ADMIN))
    client = TestClient(
        web_of_installation(), headers={"Authorization": "Bearer pt_x"}, base_url="http://testserver/api/v1"
    )
    yield client
    client.close()


@pytest.fixture
def version(installation: None) -> EnvironmentVersion:
    with transaction() as session:
        return make_environment_version(session, make_environment(session, "tictactoe"))


@pytest.fixture
def rich_run(version: EnvironmentVersion) -> Run:
    """Three groups of two, one of them failed, with reasoning, tool calls, tokens, costs and odd text."""
    with transaction() as session:
        version = session.merge(version)
        policy = make_policy(
            session, "gpt-small", PolicyKind.OPENAI_API, {"model": "gpt-small", "base_url": "http://x"}
        )
        run = make_run(session, session.get_one(EnvironmentVersion, version.id), policy, name="a rich run")
        store_rich(session, run)
        return run


@pytest.fixture
def import_rollouts(api: TestClient) -> Import:
    """Send a file, carry its job out and give the run as it is then."""

    def send(content: bytes, name: str = "rollouts.jsonl", **fields: str) -> dict[str, Any]:
        answer = api.post("/rollouts/import", files={"file": (name, content)}, data=fields)
        assert answer.status_code == 201, answer.text
        import_file(uuid.UUID(answer.json()["id"]))
        found: dict[str, Any] = api.get(f"/runs/{answer.json()['id']}").json()
        return found

    return send
