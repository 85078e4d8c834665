"""A verdict is stored with who, when and how blind, and leads to the next item."""

import re
import uuid

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.ids import new_id
from backend.domain.vocabulary import Phase, Role, RunKind, Verdict
from backend.review import queue
from backend.review.tables import AuditSample, ReviewItem, VerdictFixture, VerdictRecord
from backend.team.tables import AuditEvent
from backend.web.routing import PUBLIC, guarded_routes
from tests import factories
from tests.web_fixtures import make_person, sign_in


@pytest.fixture
def flags(session: Session) -> list[Flag]:
    """Two rollouts, the first flagged twice and so more suspicious."""
    run = factories.make_run(session)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 2)
    return [
        factories.make_flag(session, run, rollouts[0], detector="repeated_text"),
        factories.make_flag(session, run, rollouts[0], detector="early_exit"),
        factories.make_flag(session, run, rollouts[1], detector="repeated_text"),
    ]


def test_it_counts_for_all_flags_of_the_rollout_and_continues(
    reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    answer = reviewer.post(f"/review/{flags[0].rollout_id}", data={"verdict": "hack", "comment": " a trick "})
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/review/{flags[2].rollout_id}?judged={flags[0].rollout_id}"
    records = session.scalars(select(VerdictRecord)).all()
    assert {record.flag_id for record in records} == {flags[0].id, flags[1].id}
    me = reviewer.get("/api/v1/me").json()["person_id"]
    assert {(record.verdict, record.comment, str(record.person_id)) for record in records} == {
        (Verdict.HACK, "a trick", me)
    }
    event = session.scalars(select(AuditEvent).where(AuditEvent.action == "verdict.give")).one()
    assert event.detail["verdict"] == "hack"


def test_it_is_blind_only_where_nothing_was_reported(reviewer: TestClient, session: Session, flags: list[Flag]) -> None:
    first, second = flags[0].rollout_id, flags[2].rollout_id
    reviewer.post(f"/review/{first}?order=suspicion", data={"verdict": "hack"})
    reviewer.post(f"/review/{second}?evidence=1", data={"verdict": "hack"})
    reviewer.post(f"/review/{first}", data={"verdict": "honest"})
    records = session.scalars(select(VerdictRecord).where(VerdictRecord.flag_id.in_([flags[0].id, flags[2].id])))
    assert {(record.rollout_id, record.verdict, record.is_blind) for record in records} == {
        (first, Verdict.HACK, True),
        (second, Verdict.HACK, False),
        (first, Verdict.HONEST, False),
    }


def test_a_filter_by_detector_and_the_address_of_a_flag_show_too(
    reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    reviewer.post(f"/review/{flags[0].rollout_id}?detector=early_exit", data={"verdict": "hack"})
    reviewer.post(f"/review/{flags[2].id}", data={"verdict": "hack"})
    assert not any(session.scalars(select(VerdictRecord.is_blind)))


def test_a_second_verdict_is_a_new_record(reviewer: TestClient, session: Session, flags: list[Flag]) -> None:
    rollout_id = flags[2].rollout_id
    reviewer.post(f"/review/{rollout_id}", data={"verdict": "hack"})
    reviewer.post(f"/review/{rollout_id}", data={"verdict": "honest"})
    records = session.scalars(select(VerdictRecord).where(VerdictRecord.flag_id == flags[2].id)).all()
    assert {record.verdict for record in records} == {Verdict.HACK, Verdict.HONEST}
    assert session.get_one(ReviewItem, rollout_id).verdict is Verdict.HONEST
    history = reviewer.get(f"/review/{rollout_id}").text
    assert history.count("Reviewer, ") == 2
    told = reviewer.get(f"/api/v1/review/items/{rollout_id}/verdicts").json()["items"]
    assert [each["verdict"] for each in told] == ["honest", "hack"]


def test_what_others_said_is_not_reported_before_the_own_verdict(
    app: FastAPI, reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    rollout_id = flags[0].rollout_id
    reviewer.post(f"/review/{rollout_id}", data={"verdict": "hack", "comment": "a plain trick"})
    second = sign_in(app, session, make_person(session, Role.REVIEWER, "second@example.org"))
    assert "a plain trick" not in second.get(f"/review/{rollout_id}").text
    second.post(f"/review/{rollout_id}", data={"verdict": "honest"})
    assert "a plain trick" in second.get(f"/review/{rollout_id}").text
    stats = second.get("/api/v1/review/stats").json()
    assert (stats["judged_twice"], stats["agreeing"], stats["kappa"]) == (1, 0, 0.0)
    assert "0 of 1 blind second verdicts agree" in second.get("/review").text


def test_the_last_verdict_leads_to_the_empty_queue(reviewer: TestClient, flags: list[Flag]) -> None:
    reviewer.post(f"/review/{flags[0].rollout_id}", data={"verdict": "honest"})
    answer = reviewer.post(f"/review/{flags[2].rollout_id}", data={"verdict": "honest"})
    assert answer.headers["location"] == f"/review?judged={flags[2].rollout_id}"
    assert reviewer.get("/api/v1/review/next").status_code == 404


def test_a_form_sent_twice_is_one_verdict(reviewer: TestClient, session: Session, flags: list[Flag]) -> None:
    for _ in range(2):
        reviewer.post(f"/review/{flags[2].rollout_id}", data={"verdict": "hack"})
    assert len(session.scalars(select(VerdictRecord)).all()) == 1


def test_a_rollout_of_the_blind_sample_is_judged_like_any(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, factories.random_rows(1))[0]
    session.add(AuditSample(id=new_id(), run_id=run.id, rollout_id=rollout.id, lot=0.3))
    queue.place(session, [rollout.id])
    assert reviewer.get("/api/v1/review/next").json()["id"] == str(rollout.id)
    answer = reviewer.post(f"/api/v1/review/items/{rollout.id}/verdicts", json={"verdict": "hack"})
    assert answer.status_code == 201
    record = session.scalars(select(VerdictRecord)).one()
    assert (record.flag_id, record.rollout_id, record.is_blind) == (None, rollout.id, True)


def test_a_rollout_without_flags_can_be_judged(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, factories.random_rows(1))[0]
    answer = reviewer.post(f"/api/v1/rollouts/{rollout.id}/verdicts", json={"verdict": "broken_reward"})
    assert answer.status_code == 201
    assert answer.json()["items"][0]["flag_id"] is None


def test_siblings_and_the_policy_before_training_stand_with_it(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session, kind=RunKind.TRAINING)
    start = factories.make_rollouts(session, run, [[0.0, 1.0, 0.0]], phase=Phase.HELDOUT, step=0, excerpt="at first")
    later = factories.make_rollouts(
        session, run, [[1.0, 1.0, 0.0]] * 2, phase=Phase.HELDOUT, step=20, group_size=2, excerpt="in the end"
    )
    factories.make_flag(session, run, later[0])
    whole = reviewer.get("/api/v1/review/next").json()
    assert (whole["siblings"], whole["base"]) == ([str(later[1].id)], [str(start[0].id)])
    page = reviewer.get(f"/review/{later[0].id}?beside={start[0].id}")
    assert 'id="transcript-beside"' in page.text
    part = reviewer.get(f"/review/{later[0].id}?beside={start[0].id}", headers={"HX-Request": "true"})
    assert part.text.lstrip().startswith('<div id="beside">')
    other = factories.make_rollouts(session, factories.make_run(session), [[1.0, 1.0, 0.0]])[0]
    assert 'id="transcript-beside"' not in reviewer.get(f"/review/{later[0].id}?beside={other.id}").text


def test_viewers_read_but_do_not_judge(viewer: TestClient, session: Session, flags: list[Flag]) -> None:
    assert viewer.get(f"/review/{flags[0].rollout_id}").status_code == 200
    assert viewer.post(f"/review/{flags[0].rollout_id}", data={"verdict": "hack"}).status_code == 403
    assert session.scalars(select(VerdictRecord)).all() == []


def test_an_unknown_verdict_or_item_is_refused(reviewer: TestClient, flags: list[Flag]) -> None:
    assert reviewer.post(f"/review/{flags[0].rollout_id}", data={"verdict": "guilty"}).status_code == 422
    assert reviewer.post(f"/review/{uuid.uuid4()}", data={"verdict": "hack"}).status_code == 404
    assert reviewer.post(f"/api/v1/rollouts/{uuid.uuid4()}/verdicts", json={"verdict": "hack"}).status_code == 404


def test_a_hack_that_is_no_fixture_is_reported_with_the_form_for_its_bound(
    app: FastAPI, reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    """The version of these rollouts declares no floor."""
    answer = reviewer.post(f"/review/{flags[0].rollout_id}", data={"verdict": "hack"})
    following = reviewer.get(answer.headers["location"]).text
    assert "Verdict: hack. No certificate replays it: its version declares no floor" in following
    assert "An author can: Ann." not in following
    assert 'name="bound"' not in following
    author = sign_in(app, session, make_person(session, Role.AUTHOR, "ann@example.org", name="Ann"))
    assert "An author can: Ann." in reviewer.get(answer.headers["location"]).text
    answer = author.post(f"/review/{flags[0].rollout_id}", data={"verdict": "hack"})
    assert 'name="bound"' in author.get(answer.headers["location"]).text
    assert 'name="bound"' in author.get(f"/rollouts/{flags[0].rollout_id}").text
    author.post(f"/rollouts/{flags[0].rollout_id}/fixture", data={"bound": "0.2"})
    assert session.scalars(select(VerdictFixture.highest)).all() == [0.2]
    assert 'name="bound"' not in author.get(answer.headers["location"]).text


def test_a_broken_reward_offers_its_repair_next_to_the_next_item(
    app: FastAPI, reviewer: TestClient, session: Session, flags: list[Flag]
) -> None:
    author = sign_in(app, session, make_person(session, Role.AUTHOR, "ann@example.org", name="Ann"))
    answer = author.post(f"/review/{flags[0].rollout_id}", data={"verdict": "broken_reward"})
    assert f"/edit?beside={flags[0].rollout_id}" in author.get(answer.headers["location"]).text
    answer = reviewer.post(f"/review/{flags[2].rollout_id}", data={"verdict": "broken_reward"})
    following = reviewer.get(answer.headers["location"]).text
    assert "An author can: Ann." in following
    assert "/edit?beside=" not in following


JUDGING = (
    r"/review/.*|/rollouts/\{rollout_id\}/(verdicts|review|review/undo|fixture)"
    r"|/api/v1/(review/.*|flags/\{flag\}/verdicts|rollouts/\{rollout(_id)?\}/(verdicts|fixture))"
)
OWN = (
    r"/sign-out|/projects/choose|/me/.*|/tokens/.*|/api/v1/tokens.*|(/runs/\{run_id\}/rollouts)?/views.*|/api/v1/views.*"
    r"|(/api/v1)?/(notices/.*|sessions.*)"
)
"""Account, sessions, tokens, the chosen project, saved views and read notices: available to every role."""
LOOKING = r"(/api/v1)?/training/(examples|pairs)/preview|/api/v1/environments/validate|/mcp"
"""Sends much and changes nothing; a call of a tool is checked again as its own request."""


def test_a_reviewer_reads_and_judges_and_nothing_else(app: FastAPI) -> None:
    """Every route of the role that does more than reading."""
    changing = [
        path
        for path, methods, role in guarded_routes(app)
        if role and Role.REVIEWER.includes(role) and methods - {"GET", "HEAD"} and path not in PUBLIC
    ]
    assert [path for path in changing if not re.fullmatch(f"{JUDGING}|{OWN}|{LOOKING}", path)] == []
    assert len(changing) > 20


def test_the_rest_of_a_cluster_is_judged_at_once_after_three_agree(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 6)
    for rollout in rollouts:
        factories.make_flag(session, run, rollout, cluster="sys.exit(0)")
    items = reviewer.get("/api/v1/review/items").json()["items"]
    for number, item in enumerate(items[:3]):
        at_once = reviewer.post(f"/review/{item['id']}/cluster", data={"verdict": "hack"})
        assert at_once.status_code == 409, f"after {number}"
        answer = reviewer.post(f"/review/{item['id']}", data={"verdict": "hack"})
    assert "Apply to the other 3" in reviewer.get(answer.headers["location"]).text
    assert reviewer.post(f"/review/{item['id']}/cluster", data={"verdict": "honest"}).status_code == 409
    done = reviewer.post(f"/review/{item['id']}/cluster", data={"verdict": "hack"})
    assert "Undo for 3" in reviewer.get(done.headers["location"]).text
    assert _waiting(session) == 0
    assert _judged_at_once(session) == {each["id"] for each in items[3:]}
    fixed = {str(rollout_id) for rollout_id in session.scalars(select(VerdictFixture.rollout_id))}
    assert not fixed & _judged_at_once(session)
    reviewer.post(f"/review/{item['id']}/cluster", data={"verdict": "unsure"})
    assert _waiting(session) == 3
    assert reviewer.get("/api/v1/review/stats").json()["today"] == 3


def _waiting(session: Session) -> int:
    return len(session.scalars(select(ReviewItem).where(ReviewItem.verdict.is_(None))).all())


def _judged_at_once(session: Session) -> set[str]:
    statement = select(VerdictRecord.rollout_id).where(VerdictRecord.is_bulk, VerdictRecord.verdict == Verdict.HACK)
    return {str(rollout_id) for rollout_id in session.scalars(statement)}


def test_the_daily_target_is_each_ones_own(reviewer: TestClient, author: TestClient) -> None:
    assert reviewer.put("/api/v1/review/target", json={"per_day": 5}).json()["per_day"] == 5
    assert author.get("/api/v1/review/stats").json()["per_day"] == 30
    assert reviewer.put("/api/v1/review/target", json={"per_day": 0}).status_code == 422
