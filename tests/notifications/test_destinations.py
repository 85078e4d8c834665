"""Where notices go: added, changed, tried and deleted by administrators; secrets never come back."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import NOTICE_JOB
from backend.core.tables import Job
from backend.domain.notifications.notices import DeliveryStatus
from backend.notifications.outbox import secret_of
from backend.notifications.tables import NoticeDelivery, NoticeDestination
from backend.team.tables import AuditEvent
from tests.notifications.sending import tell

URL = "/api/v1/notifications/destinations"
WEBHOOK = {"kind": "webhook", "name": "chat", "url": "https://hooks.example.org/T0/B0/token", "secret": "s3cret"}
EMAIL = {
    "kind": "email",
    "name": "mail",
    "host": "smtp.example.org",
    "user": "proctor",
    "secret": "p4ss",
    "sender": "proctor@example.org",
    "recipients": ["ana@example.org", "rae@example.org"],
}


def test_a_webhook_is_added_and_its_secret_never_shown(admin: TestClient, session: Session) -> None:
    answer = admin.post(URL, json=WEBHOOK | {"kinds": ["alarm", "run_failed"]})
    assert answer.status_code == 201
    found = answer.json()
    assert (found["has_secret"], found["kinds"]) == (True, ["alarm", "run_failed"])
    place = session.get_one(NoticeDestination, found["id"])
    assert secret_of(place) == "s3cret"
    assert b"s3cret" not in (place.secret or b"")
    pages = [admin.get(path).text for path in ("/settings/notifications", f"/settings/notifications/{place.id}", URL)]
    assert not [text for text in pages if "s3cret" in text]
    logged = session.scalars(select(AuditEvent).where(AuditEvent.subject_id == str(place.id))).one()
    assert "token" not in str(logged.detail)  # the address itself is often a secret


def test_an_email_gets_the_usual_port(admin: TestClient) -> None:
    assert admin.post(URL, json=EMAIL).json()["configuration"]["port"] == 587
    assert admin.post(URL, json=EMAIL | {"name": "b", "security": "tls"}).json()["configuration"]["port"] == 465


def test_it_is_added_by_the_form(admin: TestClient, session: Session) -> None:
    form = EMAIL | {"recipients": "ana@example.org,\r\nrae@example.org", "port": "", "is_enabled": "false"}
    answer = admin.post("/notifications/destinations", data=form | {"kinds": ["alarm"]})
    assert answer.status_code == 303
    place = session.scalars(select(NoticeDestination)).one()
    assert place.configuration["recipients"] == ["ana@example.org", "rae@example.org"]
    assert (place.kinds, place.is_enabled) == (["alarm"], False)
    assert "checked" in admin.get(f"/settings/notifications/{place.id}").text
    for kind in ("webhook", "email"):
        assert admin.get(f"/settings/notifications/new?kind={kind}").status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sender": "a@example.org\r\nBcc: x@example.org"}, "sender"),
        ({"sender": "Proctor <a@example.org>"}, "sender"),
        ({"sender": "a@exam ple.org"}, "sender"),
        ({"recipients": ["a@example.org>\nRCPT TO:<b@example.org"]}, "recipients"),
        ({"recipients": []}, "recipients"),
        ({"recipients": ["nobody"]}, "recipients.0"),
        ({"recipients": [f"p{n}@example.org" for n in range(21)]}, "recipients"),
        ({"host": "smtp.example.org\r\nQUIT"}, "host"),
        ({"host": ""}, "host"),
        ({"user": "a\r\nb"}, "user"),
        ({"security": "none"}, "security"),
        ({"name": "a\nb"}, "name"),
        ({"kinds": ["test"]}, "kinds.0"),
        ({"kinds": ["weather"]}, "kinds.0"),
    ],
)
def test_it_refuses_what_would_break_a_mail(admin: TestClient, change: dict[str, Any], field: str) -> None:
    answer = admin.post(URL, json=EMAIL | change)
    assert answer.status_code == 422
    fields = answer.json()["fields"]
    assert [name for name in fields if name.startswith(field.split(".")[0])], fields


@pytest.mark.parametrize(
    "url",
    ["", "ftp://example.org", "https://", "https://u:p@example.org", "https://exa mple.org/\r\nX: y", "file:///etc"],
)
def test_it_refuses_what_is_no_address(admin: TestClient, url: str) -> None:
    answer = admin.post(URL, json=WEBHOOK | {"url": url})
    assert answer.status_code == 422
    assert "url" in answer.json()["fields"]


def test_a_secret_stays_until_the_address_changes(admin: TestClient, session: Session) -> None:
    place_id = admin.post(URL, json=WEBHOOK).json()["id"]
    kept = admin.put(f"{URL}/{place_id}", json=WEBHOOK | {"secret": "", "name": "team chat"}).json()
    assert (kept["name"], kept["has_secret"]) == ("team chat", True)
    elsewhere = WEBHOOK | {"secret": "", "url": "https://evil.example.org/collect"}
    assert admin.put(f"{URL}/{place_id}", json=elsewhere).json()["has_secret"] is False


def test_a_stored_secret_can_be_forgotten(admin: TestClient) -> None:
    place_id = admin.post(URL, json=WEBHOOK).json()["id"]
    answer = admin.put(f"{URL}/{place_id}", json=WEBHOOK | {"secret": "", "forget_secret": True})
    assert answer.json()["has_secret"] is False


def test_two_destinations_have_two_names(admin: TestClient) -> None:
    admin.post(URL, json=WEBHOOK)
    assert admin.post(URL, json=EMAIL | {"name": "chat"}).status_code == 422


def test_a_test_goes_to_one_destination_and_to_no_list(admin: TestClient, session: Session) -> None:
    place_id = admin.post(URL, json=WEBHOOK | {"kinds": ["onset"], "is_enabled": False}).json()["id"]
    admin.post(URL, json=EMAIL)
    sent = admin.post(f"{URL}/{place_id}/test").json()
    assert (sent["kind"], sent["status"], sent["destination"]) == ("test", "waiting", "chat")
    (job,) = session.scalars(select(Job).where(Job.name == NOTICE_JOB)).all()
    assert job.arguments == {"delivery_id": sent["id"]}
    assert admin.get("/api/v1/notices").json()["items"] == []
    assert "A test from Proctor" in admin.get("/settings/notifications").text


def test_a_delivery_that_was_given_up_is_sent_again(admin: TestClient, session: Session) -> None:
    admin.post(URL, json=WEBHOOK)
    tell(session)
    delivery = session.scalars(select(NoticeDelivery)).one()
    again = f"/api/v1/notifications/deliveries/{delivery.id}/again"
    assert admin.post(again).status_code == 409  # on its way already
    delivery.status, delivery.attempts, delivery.error = DeliveryStatus.FAILED, 6, "It answered 500."
    session.flush()
    assert "It answered 500." in admin.get("/settings/notifications").text
    assert admin.post(again).json()["status"] == "waiting"
    assert len(session.scalars(select(Job).where(Job.name == NOTICE_JOB)).all()) == 2


def test_deleting_it_keeps_the_notices(admin: TestClient, session: Session) -> None:
    place_id = admin.post(URL, json=WEBHOOK).json()["id"]
    tell(session)
    assert admin.delete(f"{URL}/{place_id}").status_code == 204
    assert session.scalars(select(NoticeDelivery)).all() == []
    assert len(admin.get("/api/v1/notices").json()["items"]) == 1


def test_an_empty_installation_shows_the_next_step(admin: TestClient) -> None:
    assert "Add a webhook" in admin.get("/settings/notifications").text


def test_only_administrators_see_addresses(trainer: TestClient) -> None:
    assert trainer.get("/settings/notifications").status_code == 403
    assert trainer.get(URL).status_code == 403
    assert "/settings/notifications" not in trainer.get("/settings").text
