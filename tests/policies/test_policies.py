"""Adding, showing and deleting policies."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.sealing import SecretUnreadable
from backend.domain.vocabulary import PolicyKind
from backend.policies.service import ensure_scripted_policies, secret_of
from backend.policies.tables import Policy
from backend.settings import get_settings
from tests.factories import make_policy

ENDPOINT = {
    "kind": "openai_api",
    "name": "qwen",
    "base_url": "http://127.0.0.1:11434/v1/",
    "model": "qwen3:8b",
    "secret": "sk-very-secret",
}


def test_every_installation_has_its_scripts_once(session: Session) -> None:
    ensure_scripted_policies(session)
    ensure_scripted_policies(session)
    names = set(session.scalars(select(Policy.name)))
    assert names == {"gold", "random", "constant", "empty", "echo", "repeat", "teacher", "human"}


def test_an_endpoint_is_added_and_its_key_is_never_shown(session: Session, trainer: TestClient) -> None:
    answer = trainer.post("/policies", data=ENDPOINT)
    policy = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    assert answer.headers["location"] == f"/policies/{policy.id}"
    assert policy.configuration == {"base_url": "http://127.0.0.1:11434/v1", "model": "qwen3:8b"}
    assert policy.secret is not None
    assert b"very-secret" not in policy.secret
    assert secret_of(policy) == "sk-very-secret"
    for path in (f"/policies/{policy.id}", "/policies", f"/api/v1/policies/{policy.id}"):
        assert "very-secret" not in trainer.get(path).text
    assert trainer.get(f"/api/v1/policies/{policy.id}").json()["has_secret"] is True


def test_a_key_does_not_open_at_another_base_url(session: Session, trainer: TestClient) -> None:
    trainer.post("/policies", data=ENDPOINT)
    policy = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    policy.configuration = {**policy.configuration, "base_url": "http://evil.example/v1"}
    with pytest.raises(SecretUnreadable):
        secret_of(policy)


def test_a_script_is_added(session: Session, trainer: TestClient) -> None:
    answer = trainer.post(
        "/api/v1/policies",
        json={"kind": "scripted", "name": "corner", "script": "constant", "constant": "<move>1</move>"},
    )
    assert answer.status_code == 201
    assert answer.json()["configuration"] == {"script": "constant", "constant": "<move>1</move>"}


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"base_url": "ftp://x/v1"}, "base_url"),
        ({"base_url": "http://user:pass@x/v1"}, "base_url"),
        ({"base_url": "http://[bad"}, "base_url"),
        ({"base_url": ""}, "base_url"),
        ({"model": ""}, "model"),
        ({"name": ""}, "name"),
        ({"kind": "local"}, "kind"),
    ],
)
def test_bad_input_names_the_field(session: Session, trainer: TestClient, fields: dict[str, str], wrong: str) -> None:
    answer = trainer.post("/policies", data=ENDPOINT | fields, headers={"Accept": "application/json"})
    assert answer.status_code == 422
    assert list(answer.json()["fields"]) == [wrong]
    assert session.scalar(select(func.count(Policy.id))) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.0.0.1", "169.254.169.254", "[::1]", "0.0.0.0"])
def test_private_addresses_are_refused_where_they_are_not_allowed(
    trainer: TestClient, monkeypatch: pytest.MonkeyPatch, host: str, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("PROCTOR_ALLOW_PRIVATE_ENDPOINTS", "false")
    get_settings.cache_clear()
    request.addfinalizer(get_settings.cache_clear)
    answer = trainer.post("/api/v1/policies", json=ENDPOINT | {"base_url": f"http://{host}/v1"})
    assert answer.status_code == 422
    assert "does not connect to it" in answer.json()["fields"]["base_url"]


def test_names_are_unique_until_deleted(session: Session, trainer: TestClient) -> None:
    trainer.post("/policies", data=ENDPOINT)
    assert trainer.post("/policies", data=ENDPOINT).status_code == 409
    policy = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    assert trainer.post(f"/policies/{policy.id}/delete").status_code == 303
    assert policy.secret is None
    assert policy.name.startswith("qwen (deleted")
    assert trainer.post("/policies", data=ENDPOINT).status_code == 303
    assert f"/policies/{policy.id}" not in trainer.get("/policies").text
    assert "was deleted" in trainer.get(f"/policies/{policy.id}").text


def test_what_belongs_to_every_installation_stays(session: Session, trainer: TestClient) -> None:
    ensure_scripted_policies(session)
    gold = session.scalars(select(Policy).where(Policy.name == "gold")).one()
    assert trainer.delete(f"/api/v1/policies/{gold.id}").status_code == 409


def test_an_author_may_look_but_not_add(session: Session, author: TestClient) -> None:
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"base_url": "http://x/v1", "model": "m"})
    assert author.get(f"/policies/{policy.id}").status_code == 200
    assert author.post("/policies", data=ENDPOINT).status_code == 403
    assert author.post(f"/policies/{policy.id}/delete").status_code == 403
    assert author.get("/policies/new").status_code == 403


def test_the_form_has_both_kinds(trainer: TestClient) -> None:
    assert 'name="base_url"' in trainer.get("/policies/new").text
    assert 'name="script"' in trainer.get("/policies/new?kind=scripted").text


def test_an_endpoint_without_tool_calls_is_asked_in_text(session: Session, trainer: TestClient) -> None:
    trainer.post("/policies", data=ENDPOINT | {"text_calls": "true"})
    policy = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    assert policy.configuration["sends_tools"] is False
    assert 'name="text_calls"' in trainer.get("/policies/new?kind=openai_api").text
