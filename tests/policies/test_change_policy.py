"""Changing a policy: the key stays with its base URL, prices and limits come and go."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import PolicyKind
from backend.policies.service import ensure_scripted_policies, secret_of
from backend.policies.tables import Policy
from backend.team.tables import AuditEvent
from tests.factories import make_policy
from tests.policies.test_policies import ENDPOINT

FULL = ENDPOINT | {
    "price_input": "0.4",
    "price_output": "1.6",
    "price_cached_input": "0.1",
    "concurrency": "8",
    "tokens_per_minute": "90000",
    "no_seed": "true",
    "logprobs": "true",
    "timeout_seconds": "30",
    "extra": '{"reasoning_effort": "low"}',
}


@pytest.fixture
def policy(session: Session, trainer: TestClient) -> Policy:
    trainer.post("/policies", data=ENDPOINT)
    return session.scalars(select(Policy).where(Policy.name == "qwen")).one()


def test_price_limits_and_fields_are_kept_as_the_contract_says(session: Session, trainer: TestClient) -> None:
    assert trainer.post("/policies", data=FULL).status_code == 303
    added = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    assert added.configuration == {
        "base_url": "http://127.0.0.1:11434/v1",
        "model": "qwen3:8b",
        "sends_seed": False,
        "logprobs": True,
        "timeout_seconds": 30.0,
        "extra": {"reasoning_effort": "low"},
        "price": {"input": 0.4, "output": 1.6, "cached_input": 0.1},
        "limits": {"concurrency": 8, "tokens_per_minute": 90000},
    }
    form = trainer.get(f"/policies/{added.id}/edit").text
    assert 'value="1.6"' in form
    assert "reasoning_effort" in form
    assert "$1.6 output" in trainer.get(f"/policies/{added.id}").text


def test_the_key_stays_unless_one_is_typed(policy: Policy, trainer: TestClient) -> None:
    answer = trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | {"secret": "", "model": "qwen3:4b"})
    assert answer.headers["location"] == f"/policies/{policy.id}"
    assert policy.configuration["model"] == "qwen3:4b"
    assert secret_of(policy) == "sk-very-secret"
    trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | {"secret": "sk-another"})
    assert secret_of(policy) == "sk-another"
    trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | {"secret": "", "forget_secret": "true"})
    assert policy.secret is None


def test_another_base_url_forgets_the_key(policy: Policy, trainer: TestClient) -> None:
    elsewhere = {"secret": "", "base_url": "http://127.0.0.1:9999/v1"}
    trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | elsewhere)
    assert policy.configuration["base_url"] == "http://127.0.0.1:9999/v1"
    assert policy.secret is None
    trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | {"secret": "sk-for-the-first"})
    assert secret_of(policy) == "sk-for-the-first"


def test_a_change_is_in_the_audit_log_without_the_key(policy: Policy, session: Session, trainer: TestClient) -> None:
    trainer.patch(f"/api/v1/policies/{policy.id}", json={"secret": "sk-another"})
    event = session.scalars(select(AuditEvent).where(AuditEvent.action == "policy.update")).one()
    assert event.detail["new_key"] is True
    assert "sk-another" not in str(event.detail)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"price_input": "1"}, "price_output"),
        ({"price_input": "-1", "price_output": "1"}, "price_input"),
        ({"concurrency": "0"}, "concurrency"),
        ({"extra": "{nonsense"}, "extra"),
        ({"extra": '{"messages": []}'}, "extra"),
        ({"extra": "[1]"}, "extra"),
        ({"timeout_seconds": "0"}, "timeout_seconds"),
    ],
)
def test_bad_input_names_the_field(policy: Policy, trainer: TestClient, fields: dict[str, str], wrong: str) -> None:
    answer = trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | fields, headers={"Accept": "application/json"})
    assert answer.status_code == 422
    assert list(answer.json()["fields"]) == [wrong]


def test_another_policys_name_is_refused(policy: Policy, session: Session, trainer: TestClient) -> None:
    make_policy(session, "taken")
    assert trainer.post(f"/policies/{policy.id}/edit", data=ENDPOINT | {"name": "taken"}).status_code == 409


def test_what_belongs_to_every_installation_stays_as_it_is(session: Session, trainer: TestClient) -> None:
    ensure_scripted_policies(session)
    gold = session.scalars(select(Policy).where(Policy.name == "gold")).one()
    body = {"name": "gold", "script": "random"}
    assert trainer.patch(f"/api/v1/policies/{gold.id}", json=body).status_code == 409
    trained = make_policy(session, kind=PolicyKind.LOCAL, configuration={"base": "x"})
    assert trainer.patch(f"/api/v1/policies/{trained.id}", json=body).status_code == 409
    assert f"/policies/{trained.id}/edit" not in trainer.get(f"/policies/{trained.id}").text


def test_a_kind_does_not_change(policy: Policy, trainer: TestClient) -> None:
    body = {"kind": "scripted", "name": "qwen", "script": "random"}
    assert trainer.patch(f"/api/v1/policies/{policy.id}", json=body).json()["fields"].keys() == {"kind"}


def test_only_given_settings_change(session: Session, trainer: TestClient) -> None:
    trainer.post("/policies", data=FULL)
    trainer.patch("/api/v1/policies/qwen", json={"model": "qwen3:4b", "no_seed": False, "price_input": 0.5})
    changed = session.scalars(select(Policy).where(Policy.name == "qwen")).one()
    assert changed.configuration == {
        "base_url": "http://127.0.0.1:11434/v1",
        "model": "qwen3:4b",
        "logprobs": True,
        "timeout_seconds": 30.0,
        "extra": {"reasoning_effort": "low"},
        "price": {"input": 0.5, "output": 1.6, "cached_input": 0.1},
        "limits": {"concurrency": 8, "tokens_per_minute": 90000},
    }
    assert secret_of(changed) == "sk-very-secret"


def test_an_author_may_not_change_it(policy: Policy, author: TestClient) -> None:
    assert author.get(f"/policies/{policy.id}/edit").status_code == 403
    assert author.patch(f"/api/v1/policies/{policy.id}", json={"model": "other"}).status_code == 403


def test_a_preset_fills_the_form(trainer: TestClient) -> None:
    assert 'value="https://router.huggingface.co/v1"' in trainer.get("/policies/new?preset=hugging_face").text
    keys = [each["key"] for each in trainer.get("/api/v1/policies/presets").json()]
    assert keys == ["vllm", "hugging_face", "openai", "llama_cpp", "ollama", "other"]
