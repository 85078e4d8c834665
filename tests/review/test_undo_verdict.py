"""A reviewer takes a verdict back: the item waits again, its effects are withdrawn, the history keeps it."""

import re
import uuid
from datetime import timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backend.detectors.queries import Scope, records
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Role, RunKind, Verdict
from backend.review import judged_curves
from backend.review.queries import UNDO_WITHIN
from backend.review.tables import ReviewItem, VerdictFixture, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.settings import PROJECT_ROOT
from backend.team.tables import AuditEvent
from tests import factories
from tests.web_fixtures import make_person, sign_in


@pytest.fixture
def rollouts(session: Session) -> list[Rollout]:
    """Three, each flagged once, that did different things; a hack among them may earn 0.3."""
    version = factories.make_environment_version(session, checks={"floor_maximum": 0.3})
    run = factories.make_run(session, version, kind=RunKind.TRAINING)
    made = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3)
    for rollout, score in zip(made, (0.9, 0.8, 0.7), strict=True):
        factories.make_flag(session, run, rollout, detector="repeated_text", score=score)
    return list(made)


def judge(client: TestClient, rollout: Rollout, verdict: str) -> str:
    """Where it leads to."""
    return str(client.post(f"/review/{rollout.id}", data={"verdict": verdict}).headers["location"])


def undo_button(page: str) -> dict[str, str]:
    """The request of the key `u`."""
    found = re.search(r'action="(/review/undo[^"]*)".*?name="verdict" value="([^"]+)".*?data-key="u"', page, re.DOTALL)
    return {"action": found[1], "verdict": found[2]} if found else {}


def press_undo(client: TestClient, address: str) -> str:
    button = undo_button(client.get(address).text)
    return str(client.post(button["action"], data={"verdict": button["verdict"]}).headers["location"])


def in_force(session: Session) -> list[float | None]:
    return [each.bound for each in session.scalars(select(VerdictFixture).where(VerdictFixture.withdrawn_at.is_(None)))]


def test_the_item_waits_again_and_its_consequences_are_withdrawn(
    reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    following = judge(reviewer, rollouts[0], "hack")
    assert in_force(session) == [0.3]
    assert press_undo(reviewer, following) == f"/review/{rollouts[0].id}"
    item = session.get_one(ReviewItem, rollouts[0].id)
    assert (item.verdict, item.reviewers) == (None, [])
    assert in_force(session) == []
    assert session.scalars(select(VerdictFixture.withdrawn_because)).all() == ["the verdict was taken back"]
    run_id = rollouts[0].run_id
    assert judged_curves.judgements_of(session, run_id) == {}
    assert not judged_curves.has_verdicts(session, run_id)
    assert all(each.open == 3 for each in records(session, Scope())["repeated_text"].values())
    assert reviewer.get("/api/v1/review/stats").json()["today"] == 0
    assert session.scalars(select(AuditEvent.action).where(AuditEvent.action == "verdict.take_back")).one()


def test_the_history_states_that_it_was_taken_back(
    reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    press_undo(reviewer, judge(reviewer, rollouts[0], "hack"))
    judge(reviewer, rollouts[0], "honest")
    told = reviewer.get(f"/api/v1/review/items/{rollouts[0].id}/verdicts").json()["items"]
    assert [(each["verdict"], bool(each["taken_back_at"])) for each in told] == [("honest", False), ("hack", True)]
    assert "taken back" in reviewer.get(f"/review/{rollouts[0].id}").text
    assert "taken back" in reviewer.get(f"/rollouts/{rollouts[0].id}").text
    assert not any(record.is_blind for record in _records(session, rollouts[0])[1:])


def test_it_goes_back_several_items_in_the_order_of_the_verdicts(
    reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    address = ""
    for rollout, verdict in zip(rollouts, ("hack", "unsure", "honest"), strict=True):
        address = judge(reviewer, rollout, verdict)
    for rollout in reversed(rollouts):
        address = press_undo(reviewer, address)
        assert address == f"/review/{rollout.id}"
    assert undo_button(reviewer.get(address).text) == {}
    assert session.scalars(select(ReviewItem.verdict)).all() == [None] * 3
    assert len(session.scalars(select(VerdictRecord)).all()) == 3
    assert reviewer.post("/api/v1/review/undo", json={}).status_code == 409


def test_a_key_pressed_twice_takes_one_verdict_back(
    reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    judge(reviewer, rollouts[0], "hack")
    button = undo_button(reviewer.get(judge(reviewer, rollouts[1], "hack")).text)
    for _ in range(2):
        answer = reviewer.post(button["action"], data={"verdict": button["verdict"]})
        assert answer.headers["location"] == f"/review/{rollouts[1].id}"
    assert session.get_one(ReviewItem, rollouts[0].id).verdict is Verdict.HACK


def test_what_the_verdict_had_withdrawn_is_in_force_again(
    author: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    judge(author, rollouts[0], "hack")
    author.post(f"/rollouts/{rollouts[0].id}/fixture", data={"bound": "0.1"})
    following = judge(author, rollouts[0], "honest")
    assert in_force(session) == []
    press_undo(author, following)
    assert in_force(session) == [0.1]
    assert session.get_one(ReviewItem, rollouts[0].id).verdict is Verdict.HACK


def test_the_same_verdict_may_be_given_again_at_once(
    reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    press_undo(reviewer, judge(reviewer, rollouts[0], "hack"))
    judge(reviewer, rollouts[0], "hack")
    assert session.get_one(ReviewItem, rollouts[0].id).verdict is Verdict.HACK
    assert in_force(session) == [0.3]


def test_a_cluster_that_was_judged_at_once_is_one_step(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    made = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 5)
    for rollout in made:
        factories.make_flag(session, run, rollout, cluster="sys.exit(0)")
    for rollout in made[:3]:
        judge(reviewer, rollout, "hack")
    done = reviewer.post(f"/review/{made[0].id}/cluster", data={"verdict": "hack"}).headers["location"]
    assert "of a cluster" in reviewer.get(done).text
    assert press_undo(reviewer, done) == "/review"
    waiting = session.scalars(select(ReviewItem.id).where(ReviewItem.verdict.is_(None))).all()
    assert set(waiting) == {rollout.id for rollout in made[3:]}
    assert press_undo(reviewer, "/review") == f"/review/{made[2].id}"


def test_no_one_takes_back_what_others_said_or_what_is_old(
    app: FastAPI, reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    judge(reviewer, rollouts[0], "hack")
    record = _records(session, rollouts[0])[0]
    other = sign_in(app, session, make_person(session, Role.ADMIN, "other@example.org"))
    assert undo_button(other.get(f"/review/{rollouts[0].id}").text) == {}
    assert other.post("/review/undo", data={"verdict": str(record.id)}).status_code == 409
    session.execute(
        update(VerdictRecord).values(created_at=VerdictRecord.created_at - UNDO_WITHIN - timedelta(hours=1))
    )
    session.expire_all()
    assert undo_button(reviewer.get("/review").text) == {}
    assert reviewer.post("/review/undo").status_code == 409
    assert session.get_one(ReviewItem, rollouts[0].id).verdict is Verdict.HACK


def test_scripts_do_it_too_and_viewers_do_not(
    viewer: TestClient, reviewer: TestClient, session: Session, rollouts: list[Rollout]
) -> None:
    given = reviewer.post(f"/api/v1/review/items/{rollouts[0].id}/verdicts", json={"verdict": "hack"}).json()["items"]
    assert viewer.post("/api/v1/review/undo", json={}).status_code == 403
    assert viewer.post("/review/undo").status_code == 403
    (taken,) = reviewer.post("/api/v1/review/undo", json={"verdict": given[0]["id"]}).json()["items"]
    assert (taken["id"], taken["verdict"], bool(taken["taken_back_at"])) == (given[0]["id"], "hack", True)
    assert reviewer.post("/api/v1/review/undo", json={"verdict": str(uuid.uuid4())}).status_code == 409


def test_a_flag_about_a_run_waits_again_too(reviewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    flag: Flag = factories.make_flag(session, run, None)
    following = reviewer.post(f"/review/{flag.id}", data={"verdict": "hack"}).headers["location"]
    assert press_undo(reviewer, following) == f"/review/{flag.id}"
    assert session.get_one(ReviewItem, flag.id).verdict is None


def test_anyone_who_reads_verdicts_shows_what_is_with_those_that_were_taken_back() -> None:
    reading, caring = (
        re.compile(r"VerdictRecord\.|FROM verdicts"),
        re.compile(r"taken_back_at|newest_looks|NEWEST_VERDICTS"),
    )
    texts = {path: path.read_text() for root in ("backend", "workers") for path in (PROJECT_ROOT / root).rglob("*.py")}
    assert [str(path) for path, text in texts.items() if reading.search(text) and not caring.search(text)] == []


def _records(session: Session, rollout: Rollout) -> list[VerdictRecord]:
    statement = select(VerdictRecord).where(VerdictRecord.rollout_id == rollout.id)
    return list(session.scalars(statement.order_by(VerdictRecord.id)))
