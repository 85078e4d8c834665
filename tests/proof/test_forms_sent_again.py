"""Every form may be sent twice: by an impatient person, by a browser that goes back. It happens once."""

import uuid
from collections.abc import Callable, Mapping

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.team.tables import Person
from tests.proof.conftest import NAME, run_of, start, work

Publish = Callable[..., str]
COUNTED = (Environment, EnvironmentVersion, Person, Policy, Run, Job)


def rows() -> list[int]:
    with transaction() as session:
        return [session.scalar(select(func.count()).select_from(model)) or 0 for model in COUNTED]


def send_twice(ada: TestClient, address: str, form: Mapping[str, object]) -> tuple[int, int]:
    """The two statuses; rows are the same after the second as after the first."""
    first = ada.post(address, data=dict(form)).status_code
    after = rows()
    second = ada.post(address, data=dict(form)).status_code
    assert rows() == after
    return first, second


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("/environments", {"name": "again", "template": "single_turn"}),
        ("/policies", {"kind": "scripted", "name": "again", "script": "random"}),
        ("/team", {"email": "bob@example.org", "name": "Bob", "role": "viewer"}),
    ],
)
def test_what_has_a_name_is_made_once(ada: TestClient, address: str, form: dict[str, str]) -> None:
    before = sum(rows())
    first, second = send_twice(ada, address, form)
    assert (first in {200, 303}, second in {409, 422}) == (True, True), (first, second)
    assert sum(rows()) > before


def test_a_run_is_started_once(ada: TestClient, publish: Publish, three: str) -> None:
    form = {"version_id": publish(), "policy_id": three, "tasks": 2, "key": uuid.uuid4().hex}
    assert send_twice(ada, "/evaluations", form) == (303, 303)
    assert work().count("evaluations.run") == 1


def test_checks_are_started_once(ada: TestClient, publish: Publish) -> None:
    publish()
    assert send_twice(ada, f"/environments/{NAME}/versions/1/checks", {}) == (303, 303)
    with transaction() as session:
        assert session.scalar(select(func.count()).where(Run.kind == RunKind.CHECK)) == 1


def test_a_run_is_stopped_and_resumed_once(ada: TestClient, publish: Publish, three: str) -> None:
    run_id = start(ada, publish(), three)
    assert send_twice(ada, f"/runs/{run_id}/stop", {}) == (303, 409)
    assert send_twice(ada, f"/runs/{run_id}/resume", {}) == (303, 409)
    work()
    assert run_of(run_id).attempt == 1


def test_a_policy_is_deleted_once(ada: TestClient, three: str) -> None:
    assert send_twice(ada, f"/policies/{three}/delete", {}) == (303, 409)
