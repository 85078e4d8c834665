"""Changing members."""

import uuid

from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.tables import AuditEvent, Person
from tests.web_fixtures import make_person


def _admin(session: Session) -> Person:
    return session.scalars(select(Person).where(Person.role == Role.ADMIN)).one()


def test_everyone_sees_the_members_but_only_administrators_get_the_forms(viewer: TestClient, admin: TestClient) -> None:
    assert "Invite a member" not in viewer.get("/team").text
    assert "Invite a member" in admin.get("/team").text


def test_a_role_changes_at_once_and_leaves_a_trace(admin: TestClient, session: Session) -> None:
    person = make_person(session, Role.VIEWER)
    assert admin.post(f"/team/{person.id}/role", data={"role": "trainer"}).status_code == 303
    assert person.role is Role.TRAINER
    event = session.scalars(select(AuditEvent).where(AuditEvent.action == "person.change_role")).one()
    assert event.detail == {"before": "viewer", "after": "trainer"}


def test_an_unknown_role_is_refused(admin: TestClient, session: Session) -> None:
    person = make_person(session, Role.VIEWER)
    assert admin.post(f"/team/{person.id}/role", data={"role": "emperor"}).status_code == 422


def test_the_last_administrator_stays_one(admin: TestClient, session: Session) -> None:
    only = _admin(session)
    assert admin.post(f"/team/{only.id}/role", data={"role": "viewer"}).status_code == 409
    assert admin.post(f"/team/{only.id}/disable").status_code == 409
    assert admin.patch(f"/api/v1/members/{only.id}", json={"disabled": True}).json()["error"] == "LastAdmin"
    assert only.role is Role.ADMIN
    assert only.is_active


def test_one_of_two_administrators_may_leave(admin: TestClient, session: Session) -> None:
    other = make_person(session, Role.ADMIN, "second@example.org")
    assert admin.post(f"/team/{other.id}/disable").status_code == 303


def test_a_disabled_member_is_out_at_once(admin: TestClient, viewer: TestClient, session: Session) -> None:
    person_id = viewer.get("/api/v1/me").json()["person_id"]
    admin.post(f"/team/{person_id}/disable")
    assert viewer.get("/api/v1/me").status_code == 401
    admin.post(f"/team/{person_id}/enable")
    assert session.get_one(Person, uuid.UUID(person_id)).is_active


def test_someone_who_does_not_exist_is_not_found(admin: TestClient) -> None:
    assert admin.post(f"/team/{uuid.uuid4()}/disable").status_code == 404
    assert admin.post("/team/not-an-id/disable").status_code == 404


def test_the_audit_log_states_who_did_what(admin: TestClient, session: Session) -> None:
    person = make_person(session, Role.VIEWER)
    admin.post(f"/team/{person.id}/disable")
    text = admin.get("/audit").text
    assert "person.disable" in text
    assert "Admin" in text
    assert admin.get("/api/v1/audit?limit=1").json()["items"][0]["action"] == "person.disable"


def test_the_audit_log_has_pages(admin: TestClient, session: Session) -> None:
    for _ in range(3):
        admin.post(f"/team/{make_person(session, Role.VIEWER, f'{uuid.uuid4()}@example.org').id}/disable")
    first = admin.get("/api/v1/audit?limit=2").json()
    second = admin.get("/api/v1/audit", params={"limit": 2, "after": first["next"]}).json()
    assert len(first["items"]) == 2
    assert not {item["id"] for item in first["items"]} & {item["id"] for item in second["items"]}
    assert admin.get("/api/v1/audit?after=nonsense").status_code == 422
