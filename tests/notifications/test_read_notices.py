"""Notices on the page, and what each person has read."""

from datetime import timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update
from sqlalchemy.orm import Session

from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.notifications.outbox import announce
from backend.notifications.tables import Notice
from backend.runs.service import finish_run
from tests.factories import make_environment, make_environment_version, make_run
from tests.notifications.sending import NAMED, tell
from tests.statements import statements_of
from tests.web_fixtures import make_person, sign_in
from workers.tasks.nightly_checks import announce_drift


def _unread(browser: TestClient) -> int:
    return len(browser.get("/api/v1/notices?unread=true").json()["items"])


def test_the_bell_counts_what_i_have_not_read(viewer: TestClient, author: TestClient, session: Session) -> None:
    for number in range(3):
        tell(session, title=f"notice {number}")
    assert 'title="3 unread"' in viewer.get("/settings").text
    first = viewer.get("/api/v1/notices").json()["items"][0]
    assert viewer.post(f"/api/v1/notices/{first['id']}/read").json()["is_read"] is True
    assert 'title="2 unread"' in viewer.get("/settings").text
    assert 'title="3 unread"' in author.get("/settings").text
    assert viewer.post("/notices/read").status_code == 303
    assert "unread" not in viewer.get("/settings").text
    assert (_unread(viewer), _unread(author)) == (0, 3)


def test_the_list_links_to_three_of_the_rollouts_that_the_evidence_names(viewer: TestClient, session: Session) -> None:
    tell(session)
    announce(session, kind=NoticeKind.JUDGING, title="t", text="x", path="/", evidence={"rollouts": 4})
    text = viewer.get("/notices").text
    assert [f'href="/rollouts/{id}"' in text for id in NAMED] == [True] * 3 + [False] * 2


def test_opening_one_goes_to_its_page_and_marks_it_read(viewer: TestClient, session: Session) -> None:
    tell(session, path="/runs/7/alarms")
    (notice,) = viewer.get("/api/v1/notices").json()["items"]
    answer = viewer.post(f"/notices/{notice['id']}/open")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/7/alarms")
    assert _unread(viewer) == 0
    viewer.post(f"/notices/{notice['id']}/open")  # reading it twice is reading it


def test_an_empty_list_shows_what_will_come(viewer: TestClient, admin: TestClient) -> None:
    assert "No notices yet" in viewer.get("/notices").text
    assert "Choose where notices are sent" in admin.get("/notices").text
    assert "You have read everything" in viewer.get("/notices?unread=true").text


def test_the_list_has_pages_and_links(viewer: TestClient, session: Session) -> None:
    for number in range(51):
        tell(session, title=f"notice {number}")
    text = viewer.get("/notices").text
    assert "Older notices" in text
    page = viewer.get("/api/v1/notices?limit=20").json()
    assert len(page["items"]) == 20
    assert page["next"]
    assert page["items"][0]["url"].startswith("http://127.0.0.1:8000/runs/")


def test_markup_in_a_notice_is_text(viewer: TestClient, session: Session) -> None:
    tell(session, title="<script>alert(1)</script>")
    text = viewer.get("/notices").text
    assert "<script>alert(1)</script>" not in text
    assert "&lt;script&gt;" in text


def test_what_was_reported_before_someone_came_is_not_unread_to_them(app: FastAPI, session: Session) -> None:
    tell(session)
    session.execute(update(Notice).values(created_at=Notice.created_at - timedelta(days=1)))
    newcomer = sign_in(app, session, make_person(session, Role.VIEWER, "new@example.org"))
    assert "unread" not in newcomer.get("/settings").text


def test_the_bell_costs_no_further_statement(viewer: TestClient, session: Session) -> None:
    with statements_of(session) as sent:
        viewer.get("/me")
    (of_notices,) = [each for each in sent if "notices" in each]
    assert "web_sessions" in of_notices


def test_a_run_that_fails_is_reported(viewer: TestClient, session: Session) -> None:
    run = make_run(session, name="nightly", status=RunStatus.RUNNING)
    finish_run(session, run, RunStatus.FAILED, reason="Its worker died or hung 5 times.")
    (notice,) = viewer.get("/api/v1/notices").json()["items"]
    assert (notice["kind"], notice["title"]) == ("run_failed", "nightly failed")
    assert notice["text"] == "Its worker died or hung 5 times."
    assert notice["url"].endswith(f"/runs/{run.id}")


def test_an_evaluation_that_pauses_itself_is_reported(viewer: TestClient, session: Session) -> None:
    run = make_run(session, name="eval", kind=RunKind.EVALUATION, status=RunStatus.RUNNING)
    finish_run(session, run, RunStatus.PAUSED, reason="Paused because too much failed.")
    assert viewer.get("/api/v1/notices").json()["items"][0]["title"] == "eval was paused"


@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.STOPPED])
def test_what_ends_as_it_should_is_not(viewer: TestClient, session: Session, status: RunStatus) -> None:
    finish_run(session, make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING), status)
    assert viewer.get("/api/v1/notices").json()["items"] == []


def test_any_evidence_can_be_stored(session: Session, viewer: TestClient) -> None:
    evidence = {"nul": "a\x00b", "half": "\ud800", "odd": float("nan"), "ids": {1, 2}, 3: object}
    announce(session, kind=NoticeKind.JUDGING, title="t", text="x", path="/", evidence=evidence)
    (found,) = viewer.get("/api/v1/notices").json()["items"]
    assert found["evidence"]["odd"] is None
    assert sorted(found["evidence"]["ids"]) == [1, 2]


def test_a_certificate_that_a_night_put_out_of_force_is_reported(viewer: TestClient, session: Session) -> None:
    version = make_environment_version(session, make_environment(session, "maze"), number=3)
    announce_drift(session, make_run(session, version, kind=RunKind.CHECK), ["gold_reaches_bound", "token_cost"])
    (notice,) = viewer.get("/api/v1/notices").json()["items"]
    assert (notice["kind"], notice["title"]) == ("certificate_expired", "The certificate of maze v3 is out of force")
    assert "gold_reaches_bound, token_cost held before" in notice["text"]
    assert notice["url"].endswith("/environments/maze/versions/3#certificate")
