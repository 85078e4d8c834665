"""Preferences of a member: kinds hidden in Proctor, email at once, and digests."""

from datetime import UTC, datetime, timedelta

from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.notifications.notices import DestinationKind, NoticeKind
from backend.domain.vocabulary import RunKind, RunStatus
from backend.notifications.outbox import announce, send_digests
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination, NoticePreference
from backend.projects.tables import Project
from backend.review.queue import announce_waiting
from backend.runs.service import finish_run
from tests import factories
from tests.notifications.sending import email, tell, webhook

URL = "/api/v1/notices/preferences"
BEST = [1.0, 1.0, 0.0]


def _deliveries(session: Session) -> list[tuple[str, bool]]:
    """Kind of destination, and whether it is to one member."""
    statement = select(NoticeDestination.kind, NoticeDelivery.person_id).join(NoticeDelivery.destination)
    return sorted((str(row.kind), row.person_id is not None) for row in session.execute(statement))


def test_a_hidden_kind_is_neither_listed_nor_counted(
    viewer: TestClient, reviewer: TestClient, session: Session
) -> None:
    assert viewer.put(URL, json={"muted": ["alarm"]}).json()["muted"] == ["alarm"]
    tell(session)
    session.flush()
    lists = [len(browser.get("/api/v1/notices").json()["items"]) for browser in (viewer, reviewer)]
    assert lists == [0, 1]
    assert "Alarms, failures" in viewer.get("/notices").text
    assert viewer.get("/notices/bell").status_code == 204
    assert reviewer.get("/notices/bell").status_code == 200
    assert viewer.put(URL, json={"muted": ["test"]}).status_code == 422


def test_preferences_are_set_by_the_form(viewer: TestClient) -> None:
    answer = viewer.post("/notices/preferences/edit", data={"email": "daily", "email_kinds": ["onset", "assigned"]})
    assert answer.status_code == 303
    found = viewer.get(URL).json()
    assert (found["email"], found["email_kinds"], found["has_mail_server"]) == ("daily", ["onset", "assigned"], False)
    page = viewer.get("/notices").text
    assert '<option value="daily" selected>' in page
    assert "until an administrator adds an email destination" in page


def test_a_member_gets_chosen_kinds_by_email_at_once(viewer: TestClient, session: Session) -> None:
    viewer.put(URL, json={"email": "immediately", "email_kinds": ["alarm"]})
    tell(session)
    assert _deliveries(session) == []  # no mail server
    email(session, 25)
    webhook(session, "https://example.org/hook")
    tell(session)
    assert _deliveries(session) == [("email", False), ("email", True), ("webhook", False)]
    announce(session, kind=NoticeKind.ONSET, title="found", text="", path="/runs/1")
    assert len(_deliveries(session)) == 5  # this kind is not mailed to the member


def test_notices_of_a_restricted_project_are_mailed_to_its_members_only(viewer: TestClient, session: Session) -> None:
    viewer.put(URL, json={"email": "immediately"})
    email(session, 25)
    run = factories.make_run(session)
    session.get_one(Project, run.project_id).is_restricted = True
    session.flush()
    tell(session, run_id=run.id)
    assert _deliveries(session) == [("email", False)]


def test_a_digest_sums_up_what_is_unread(viewer: TestClient, reviewer: TestClient, session: Session) -> None:
    for browser in (viewer, reviewer):
        browser.put(URL, json={"email": "daily"})
    email(session, 25)
    tell(session, "first")
    tell(session, "second")
    session.flush()
    reviewer.post("/api/v1/notices/read", json={})
    assert send_digests(session) == 0  # not due
    for preference in session.scalars(select(NoticePreference)):
        preference.digest_at = datetime.now(UTC) - timedelta(days=2)
    session.flush()
    assert send_digests(session) == 1
    digest = session.scalars(select(Notice).where(Notice.kind == NoticeKind.DIGEST)).one()
    assert digest.title == "2 unread notices"
    assert ("first" in digest.text, "second" in digest.text) == (True, True)
    assert "/runs/1" in digest.text
    assert send_digests(session) == 0
    titles = [item["title"] for item in viewer.get("/api/v1/notices").json()["items"]]
    assert sorted(titles) == ["first", "second"]  # the digest itself is not listed


def test_a_finished_run_is_reported_to_its_starter_and_to_destinations(
    viewer: TestClient, reviewer: TestClient, session: Session
) -> None:
    webhook(session, "https://example.org/hook")
    starter = viewer.get("/api/v1/me").json()["person_id"]
    for kind in (RunKind.EVALUATION, RunKind.CHECK):
        run = factories.make_run(session, kind=kind, status=RunStatus.RUNNING, ended_at=None, created_by=starter)
        finish_run(session, run, RunStatus.COMPLETED)
    session.flush()
    lists = [[each["kind"] for each in b.get("/api/v1/notices").json()["items"]] for b in (viewer, reviewer)]
    assert lists == [["run_finished"], []]
    assert _deliveries(session) == [(str(DestinationKind.WEBHOOK), False)]


def test_waiting_reviews_are_reported_once_per_day(session: Session) -> None:
    assert not announce_waiting(session)
    run = factories.make_run(session)
    rollouts = factories.make_rollouts(session, run, [BEST] * 2)
    for rollout in rollouts:
        factories.make_flag(session, run, rollout)
    assert announce_waiting(session)
    assert not announce_waiting(session)
    notice = session.scalars(select(Notice)).one()
    assert (notice.title, notice.path) == ("2 flagged items wait for review", "/review")
    notice.created_at = datetime.now(UTC) - timedelta(days=2)
    session.flush()
    assert announce_waiting(session)  # new ones came since
