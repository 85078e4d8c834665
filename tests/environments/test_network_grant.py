"""An administrator grants the servers of exactly one version the network, and takes it away again."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.addresses import NetworkRule
from backend.environments.queries import get_draft, get_environment
from backend.environments.service import create_environment, publish_version
from backend.environments.tables import EnvironmentVersion, NetworkGrant
from backend.settings import get_settings
from backend.team.tables import AuditEvent
from tests.environments.packages import make_files

PAGE = "/environments/guess/versions/1"
API = f"/api/v1{PAGE}/network"


@pytest.fixture
def talker(session: Session) -> EnvironmentVersion:
    """A version that asks for the network."""
    files = make_files()
    files["openenv.yaml"] += "  resources: {network: {hosts: [example.org]}}\n"
    return publish_version(session, None, create_environment(session, None, "guess", files), revision=1)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PROCTOR_ALLOW_NETWORK", "none")
    get_settings.cache_clear()
    yield
    monkeypatch.undo()
    get_settings.cache_clear()


def test_an_administrator_grants_and_withdraws(session: Session, admin: TestClient, talker: EnvironmentVersion):
    assert "Grant network access" in admin.get(PAGE).text
    assert admin.post(f"{PAGE}/network/edit").status_code == 303
    assert session.get(NetworkGrant, talker.content_hash)
    text = admin.get(PAGE).text
    assert "Withdraw" in text
    assert "Grant network access" not in text
    assert admin.post(f"{PAGE}/network/delete").status_code == 303
    assert not session.get(NetworkGrant, talker.content_hash)
    actions = session.scalars(select(AuditEvent.action).where(AuditEvent.subject_id == str(talker.id))).all()
    assert {"environment.grant_network", "environment.withdraw_network"} <= set(actions)


def test_scripts_do_the_same(admin: TestClient, talker: EnvironmentVersion):
    assert admin.get(API).json()["words"] == "not granted"
    granted = admin.put(API).json()
    assert (granted["is_open"], granted["hosts"]) == (True, ["example.org"])
    assert granted["granted_by"]
    assert admin.put(API).json()["granted_at"] == granted["granted_at"]
    assert not admin.delete(API).json()["is_open"]


@pytest.mark.parametrize("role", ["viewer", "author", "trainer"])
def test_others_see_the_state_and_may_not_change_it(
    request: pytest.FixtureRequest, talker: EnvironmentVersion, role: str
):
    client: TestClient = request.getfixturevalue(role)
    text = client.get(PAGE).text
    assert "until an administrator grants access" in text
    assert "Grant network access" not in text
    assert client.get(API).json()["is_open"] is False
    assert client.post(f"{PAGE}/network/edit").status_code == 403
    assert client.post(f"{PAGE}/network/delete").status_code == 403
    assert client.put(API).status_code == 403
    assert client.delete(API).status_code == 403


def test_a_version_that_asks_for_nothing_is_granted_nothing(admin: TestClient, version: EnvironmentVersion):
    assert 'id="network"' not in admin.get(PAGE).text
    assert admin.put(API).status_code == 409


@pytest.mark.usefixtures("closed")
def test_anyone_who_runs_the_machine_has_the_last_word(session: Session, admin: TestClient, talker: EnvironmentVersion):
    session.add(NetworkGrant(content_hash=talker.content_hash))
    session.flush()
    assert admin.get(API).json()["is_open"] is False
    assert "disabled network access" in admin.get(PAGE).text
    assert admin.put(API).status_code == 409


def test_the_next_version_needs_its_own_grant(session: Session, admin: TestClient, talker: EnvironmentVersion):
    admin.put(API)
    guess = get_environment(session, "guess")
    draft = get_draft(session, guess)
    draft.files = {**draft.files, "README.md": "# Second\n"}
    draft.revision += 1
    session.flush()
    publish_version(session, None, guess, revision=None)
    assert admin.get("/api/v1/environments/guess/versions/2/network").json()["is_open"] is False


@pytest.mark.parametrize(
    ("setting", "is_granted", "allowed"),
    [("", True, True), ("", False, False), ("none", True, False), ("abc, def", False, True), ("abc,none", True, False)],
)
def test_the_operators_setting(setting: str, is_granted: bool, allowed: bool):
    assert NetworkRule.read(setting).allows("abc", is_granted=is_granted) is allowed
