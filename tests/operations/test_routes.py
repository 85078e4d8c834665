"""The web's doors to a declared operation: JSON, forms, roles, the audit log."""

import uuid

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.policies.tables import Policy
from backend.team.tables import AuditEvent
from backend.web.routing import guarded_routes
from tests.operations.conftest import make_token
from tests.web_fixtures import ClientFor, browser


def test_json_calls_the_function(trainer: TestClient, policy: Policy) -> None:
    answer = trainer.post("/api/v1/policies/tidy/labels", json={"text": "good", "weight": 0.5})
    assert answer.status_code == 200
    assert answer.json() == {"id": str(policy.id), "name": "good", "weight": 0.5}
    assert policy.description == "good"


def test_a_change_is_in_the_audit_log_with_its_short_values(
    trainer: TestClient, policy: Policy, session: Session
) -> None:
    trainer.post("/api/v1/policies/tidy/labels", json={"text": "good"})
    event = session.scalars(select(AuditEvent)).one()
    assert (event.action, event.subject_kind, event.subject_id) == ("label.create", "label", str(policy.id))
    assert event.detail == {"text": "good", "name": "tidy"}


def test_a_read_is_not_in_the_audit_log(viewer: TestClient, session: Session) -> None:
    assert viewer.get("/api/v1/labels").status_code == 200
    assert session.scalars(select(AuditEvent)).all() == []


def test_a_lower_role_is_refused_before_anything_is_looked_up(client_for: ClientFor, policy: Policy) -> None:
    for path in ("/api/v1/policies/tidy/labels", "/api/v1/policies/nothing/labels", "/policies/tidy/labels"):
        assert client_for(Role.AUTHOR).post(path, json={}).status_code == 403


def test_a_row_that_does_not_exist_is_404(trainer: TestClient) -> None:
    answer = trainer.post("/api/v1/policies/nothing/labels", json={"text": "good"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "There is no policy nothing.")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "a", "weight": 3}, "weight"),
        ({"text": "a", "extra": 1}, "extra"),
    ],
)
def test_bad_input_names_its_field(trainer: TestClient, policy: Policy, body: dict[str, object], field: str) -> None:
    answer = trainer.post("/api/v1/policies/tidy/labels", json=body)
    assert answer.status_code == 422
    assert list(answer.json()["fields"]) == [field]
    assert policy.description == ""


def test_a_form_calls_the_same_function_and_shows_its_page(trainer: TestClient, policy: Policy) -> None:
    answer = trainer.post("/policies/tidy/labels", data={"text": "good", "weight": ""})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/policies/{policy.id}")
    assert "good" in answer.cookies["proctor_notice"]
    assert policy.description == "good"


def test_a_query_is_read_and_checked(viewer: TestClient) -> None:
    assert [each["name"] for each in viewer.get("/api/v1/labels?at_least=1").json()["items"]] == ["label2", "label3"]
    assert list(viewer.get("/api/v1/labels?at_least=x").json()["fields"]) == ["at_least"]
    assert viewer.get("/api/v1/labels?unknown=1").status_code == 422


def test_parts_of_an_address_that_are_no_rows_keep_their_type(admin: TestClient, policy: Policy) -> None:
    assert admin.delete("/api/v1/policies/tidy/labels/x").status_code == 404
    assert admin.delete("/api/v1/policies/tidy/labels/3").status_code == 204
    assert policy.description == "without 3"


def test_every_operation_declares_its_role(app: FastAPI) -> None:
    roles = {path: role for path, _, role in guarded_routes(app)}
    assert roles["/api/v1/policies/{policy}/labels"] is Role.TRAINER
    assert roles["/policies/{policy}/labels"] is Role.TRAINER
    assert roles["/api/v1/labels"] is Role.VIEWER


def test_a_read_only_token_may_read_but_not_change(app: FastAPI, session: Session, policy: Policy) -> None:
    secret = make_token(app, session, Role.TRAINER, is_read_only=True)
    script = browser(app, Authorization=f"Bearer {secret}")
    assert script.get("/api/v1/labels").status_code == 200
    assert script.post("/api/v1/policies/tidy/labels", json={"text": "a"}).status_code == 403


def test_a_download_is_a_file_with_its_name(viewer: TestClient) -> None:
    answer = viewer.get("/api/v1/labels/file?at_least=1")
    assert answer.text == "label2\nlabel3\n"
    assert answer.headers["content-disposition"] == 'attachment; filename="labels.txt"'


def test_an_upload_is_a_multipart_form_with_a_limit(client_for: ClientFor, app: FastAPI) -> None:
    author = client_for(Role.AUTHOR)
    sent = author.post("/api/v1/labels/import", files={"file": ("l.csv", b"a;b;c")}, data={"separator": ";"})
    assert sent.json() == {"id": str(uuid.UUID(int=3)), "name": "a", "weight": 0.0}
    assert author.post("/api/v1/labels/import", files={"file": ("l.csv", b"a" * 2000)}).status_code == 413
    assert list(author.post("/api/v1/labels/import", data={"separator": ";"}).json()["fields"]) == ["file"]
