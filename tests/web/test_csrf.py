"""A change authorized by a cookie needs the session's CSRF token."""

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from tests.web_fixtures import make_person


def test_a_change_without_the_token_is_refused(admin: TestClient, session: Session) -> None:
    person = make_person(session, Role.VIEWER)
    answer = admin.post(f"/team/{person.id}/disable", headers={"X-CSRF-Token": "wrong"})
    assert answer.status_code == 403
    assert person.is_active


def test_the_token_may_come_as_a_form_field(admin: TestClient, session: Session) -> None:
    person = make_person(session, Role.VIEWER)
    token = admin.headers.pop("X-CSRF-Token")
    assert admin.post(f"/team/{person.id}/disable").status_code == 403
    assert admin.post(f"/team/{person.id}/disable", data={"csrf_token": token}).status_code == 303
    assert not person.is_active


def test_json_changes_by_cookie_need_it_too(admin: TestClient) -> None:
    form = {"email": "a@example.org", "name": "A", "role": "viewer"}
    assert admin.post("/api/v1/members", json=form, headers={"X-CSRF-Token": ""}).status_code == 403
    assert admin.post("/api/v1/members", json=form).status_code == 201
