"""The list by expected harm, the limited audit sample next to it, and the text of rows and verdicts."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role, RunKind, RunStatus, Verdict
from backend.review import audit_sample, queries
from backend.review import queue as stored_queue
from backend.review.schemas import Order, Part, ReviewFilter
from backend.review.tables import AuditDraw, AuditLimit, AuditSample, ReviewItem, VerdictRecord
from backend.team.auth import link_for, use_link
from backend.team.schemas import Welcome
from backend.web.identity import ClientInfo
from tests import factories

BEST = [1.0, 1.0, 0.0]


@pytest.fixture
def person_id(session: Session) -> uuid.UUID:
    return factories.make_person(session, Role.REVIEWER).id


def _listed(session: Session, person_id: uuid.UUID, **chosen: object) -> list[uuid.UUID]:
    items, _ = queries.queue(session, ReviewFilter.model_validate(chosen), person_id, limit=50)
    return [item.id for item in items]


def _sample(session: Session, rollout: factories.Rollout) -> None:
    session.add(AuditSample(run_id=rollout.run_id, rollout_id=rollout.id, lot=0.5))
    stored_queue.place(session, [rollout.id])


def test_harm_is_suspicion_by_reward_of_all_alike_and_twice_while_their_run_trains(
    session: Session, person_id: uuid.UUID
) -> None:
    ended = factories.make_run(session)
    alone, *alike = factories.make_rollouts(session, ended, [BEST] * 4)
    trains = factories.make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, ended_at=None)
    (training,) = factories.make_rollouts(session, trains, [BEST])
    factories.make_flag(session, ended, alone, score=0.9)
    for rollout in alike:
        factories.make_flag(session, ended, rollout, score=0.5, cluster="sys.exit")
    factories.make_flag(session, trains, training, score=0.5)
    first, *repeats = sorted(each.id for each in alike)
    assert _listed(session, person_id) == [first, training.id, alone.id, *sorted(repeats, reverse=True)]
    harm = {item.id: item.harm for item in session.scalars(select(ReviewItem))}
    share = session.get_one(ReviewItem, alone.id).reward_share
    assert harm[first] == pytest.approx(3 * 0.25 * share, abs=1e-5)
    assert harm[training.id] == pytest.approx(2 * 0.25 * share, abs=1e-5)
    assert harm[alone.id] == pytest.approx(0.45 * share, abs=1e-5)
    assert -1 <= harm[repeats[0]] < 0


def test_an_item_of_the_audit_sample_is_reviewed_blind_in_its_own_list(
    session: Session, reviewer: TestClient, person_id: uuid.UUID
) -> None:
    run = factories.make_run(session)
    flagged, drawn, both = factories.make_rollouts(session, run, [BEST] * 3)
    for rollout in (flagged, both):
        factories.make_flag(session, run, rollout, sentence=f"Odd {rollout.member}.")
    for rollout in (drawn, both):
        _sample(session, rollout)
    assert _listed(session, person_id) == [flagged.id]
    assert set(_listed(session, person_id, order=Order.INTERVAL)) == {drawn.id, both.id}
    assert set(_listed(session, person_id, shown=Part.ALL)) == {flagged.id, drawn.id, both.id}
    page = reviewer.get("/review").text
    assert f"Odd {flagged.member}." in page
    assert f"/review/{both.id}" not in page
    assert "2 items of the audit sample wait" in page
    assert f"Odd {flagged.member}." in reviewer.get(f"/review/{flagged.id}").text
    for path in (f"/review/{both.id}", f"/review/{both.id}?order=interval"):
        assert f"Odd {both.member}." not in reviewer.get(path).text
    for rollout in (flagged, both):
        reviewer.post(f"/review/{rollout.id}", data={"verdict": "hack"})
    blind = dict(session.execute(select(VerdictRecord.rollout_id, VerdictRecord.is_blind)).all())
    assert blind == {flagged.id: False, both.id: True}


def test_after_the_last_flagged_item_the_audit_sample_begins(session: Session, reviewer: TestClient) -> None:
    run = factories.make_run(session)
    flagged, drawn = factories.make_rollouts(session, run, [BEST] * 2)
    factories.make_flag(session, run, flagged)
    _sample(session, drawn)
    answer = reviewer.post(f"/review/{flagged.id}", data={"verdict": "honest"})
    assert answer.headers["location"] == f"/review/{drawn.id}?order=interval&judged={flagged.id}"
    assert "No flagged rollout waits" in reviewer.get("/review").text


def test_a_large_run_leaves_no_more_than_the_limit_of_a_day_in_the_queue(session: Session) -> None:
    run = factories.make_run(session)
    group = factories.make_group(session, run)
    for member in range(60):
        factories.make_rollout(session, run, group, BEST, member=member)
    session.add(AuditDraw(run_id=run.id, seed=1, share=2.0, drawn_seq=0))
    session.flush()
    assert audit_sample.draw_from(session, run.id) == 60
    audit_sample.keep_within_limits(session)
    assert session.scalar(select(func.count(ReviewItem.id))) == audit_sample.PER_DAY == 30
    chances = session.scalars(select(AuditSample.chance)).all()
    assert len(set(chances)) == 1
    assert 0 < chances[0] < 1  # a verdict represents 1 / chance rollouts
    session.add(AuditLimit(per_day=5))
    session.flush()
    audit_sample.keep_within_limits(session)
    assert session.scalar(select(func.count(ReviewItem.id))) == 5


def test_an_administrator_sets_the_limit(admin: TestClient, reviewer: TestClient, session: Session) -> None:
    assert reviewer.get("/api/v1/review/stats").json()["audits_per_day"] == 30
    for per_day in (12, 7):
        assert admin.put("/api/v1/review/audits", json={"audits_per_day": per_day}).status_code == 200
    stats = reviewer.get("/api/v1/review/stats").json()
    assert (stats["audits_per_day"], stats["audits_today"], stats["flagged"]) == (7, 0, 0)
    assert reviewer.put("/api/v1/review/audits", json={"audits_per_day": 1}).status_code == 403
    assert admin.put("/api/v1/review/audits", json={"audits_per_day": 0}).status_code == 422


def test_rows_say_the_task_what_is_suspicious_and_where(session: Session, reviewer: TestClient) -> None:
    run = factories.make_run(session)
    (rollout,) = factories.make_rollouts(session, run, [BEST])
    rollout.messages = [
        {"role": "system", "content": "You are a solver."},
        {"role": "user", "content": "Sort <these>\nnumbers."},
        {"role": "assistant", "content": "import os; os._exit(0)"},
    ]
    span = {"turn": 0, "start": 11, "end": 22, "quote": "os._exit(0)"}
    factories.make_flag(session, run, rollout, sentence="It ends the process.", evidence={"spans": [span]})
    row = reviewer.get("/review").text
    assert "It ends the process." in row
    assert "Sort &lt;these&gt; numbers." in row
    assert '<blockquote class="quote">os._exit(0)</blockquote>' in row
    item = reviewer.get(f"/review/{rollout.id}").text
    assert "<details open><summary>You are a solver." in item


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_says_what_it_caused_and_how_to_undo_it(
    session: Session, reviewer: TestClient, verdict: Verdict
) -> None:
    run = factories.make_run(session)
    first, _ = rollouts = factories.make_rollouts(session, run, [BEST] * 2)
    for rollout in rollouts:
        factories.make_flag(session, run, rollout)
    before = reviewer.get(f"/review/{first.id}").text
    assert 'class="meaning"' in before
    after = reviewer.post(f"/review/{first.id}", data={"verdict": verdict}, follow_redirects=True).text
    assert "Undo (u)" in after
    assert {"hack": "replay", "honest": "counts against", "broken_reward": "gradient", "unsure": "Nothing changes"}[
        verdict
    ] in after


def test_a_reviewer_signs_in_to_the_queue(session: Session) -> None:
    homes = []
    for role in (Role.REVIEWER, Role.AUTHOR):
        person = factories.make_person(session, role)
        secret = link_for(session, person).rsplit("/", 1)[1]
        welcome = Welcome(name=person.name, password="a long enough secret")
        homes.append(use_link(session, secret, welcome, ClientInfo("127.0.0.1", "Firefox")).home)
    assert homes == ["/review", "/"]
