"""A verdict is stored with who and when, and leads to the next suspect."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import AuditEvent, Flag, VerdictRecord
from backend.domain.vocabulary import Verdict
from tests import factories


@pytest.fixture
def flags(session: Session) -> list[Flag]:
    """Two rollouts, the first flagged twice."""
    run = factories.make_run(session)
    rollouts = factories.make_rollouts(session, run, factories.random_rows(2))
    return [
        factories.make_flag(session, run, rollouts[0], detector="repeated_text"),
        factories.make_flag(session, run, rollouts[0], detector="early_exit"),
        factories.make_flag(session, run, rollouts[1], detector="repeated_text"),
    ]


def test_it_counts_for_all_flags_of_the_rollout_and_goes_on(
    reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    answer = reviewer.post(f"/review/{flags[0].id}", data={"verdict": "hack", "comment": " a trick "})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"/review/{flags[2].id}")
    records = session.scalars(select(VerdictRecord)).all()
    assert {record.flag_id for record in records} == {flags[0].id, flags[1].id}
    me = reviewer.get("/api/v1/me").json()["person_id"]
    assert {(record.verdict, record.comment, str(record.person_id)) for record in records} == {
        (Verdict.HACK, "a trick", me)
    }
    event = session.scalars(select(AuditEvent).where(AuditEvent.action == "verdict.give")).one()
    assert event.detail["verdict"] == "hack"


def test_undo_leads_back_and_a_second_verdict_is_a_new_record(
    reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    first = reviewer.post(f"/review/{flags[2].id}", data={"verdict": "hack"})
    page = reviewer.get(first.headers["location"])
    assert f'href="/review/{flags[2].id}"' in page.text
    reviewer.post(f"/review/{flags[2].id}", data={"verdict": "honest"})
    records = session.scalars(select(VerdictRecord).where(VerdictRecord.flag_id == flags[2].id)).all()
    assert {record.verdict for record in records} == {Verdict.HACK, Verdict.HONEST}


def test_the_last_verdict_leads_to_the_empty_queue(reviewer: TestClient, flags: list[Flag]) -> None:
    reviewer.post(f"/review/{flags[0].id}", data={"verdict": "honest"})
    answer = reviewer.post(f"/review/{flags[2].id}", data={"verdict": "honest"})
    assert answer.headers["location"] == "/review"


def test_a_form_sent_twice_is_one_verdict(reviewer: TestClient, session: Session, flags: list[Flag]) -> None:
    for _ in range(2):
        reviewer.post(f"/review/{flags[2].id}", data={"verdict": "hack"})
    assert len(session.scalars(select(VerdictRecord)).all()) == 1


def test_a_rollout_without_flags_can_be_judged(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, factories.random_rows(1))[0]
    answer = reviewer.post(f"/api/v1/rollouts/{rollout.id}/verdicts", json={"verdict": "broken_reward"})
    assert answer.status_code == 201
    assert answer.json()["items"][0]["flag_id"] is None


def test_viewers_read_but_do_not_judge(viewer: TestClient, session: Session, flags: list[Flag]) -> None:
    assert viewer.get(f"/review/{flags[0].id}").status_code == 200
    assert viewer.post(f"/review/{flags[0].id}", data={"verdict": "hack"}).status_code == 403
    assert session.scalars(select(VerdictRecord)).all() == []


def test_an_unknown_verdict_or_flag_is_refused(reviewer: TestClient, flags: list[Flag]) -> None:
    assert reviewer.post(f"/review/{flags[0].id}", data={"verdict": "guilty"}).status_code == 422
    assert reviewer.post(f"/review/{uuid.uuid4()}", data={"verdict": "hack"}).status_code == 404
    assert reviewer.post(f"/api/v1/rollouts/{uuid.uuid4()}/verdicts", json={"verdict": "hack"}).status_code == 404
