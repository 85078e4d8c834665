"""The queue: its order, what it excludes, and that it reveals no more than it should."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from math import sqrt

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.ids import new_id
from backend.domain.vocabulary import Role, Verdict
from backend.review import queue as keeping
from backend.review.queries import next_id, queue
from backend.review.schemas import Order, Part, ReviewFilter
from backend.review.tables import AuditSample, ReviewItem, VerdictRecord
from backend.team.tables import Person
from tests import factories

BEST = [1.0, 1.0, 0.0]
"""Earns all that can be earned."""


@pytest.fixture
def person(session: Session) -> Person:
    return factories.make_person(session, Role.REVIEWER)


def _run(session: Session, rows: int = 4, name: str = "maze") -> tuple[factories.Run, list[factories.Rollout]]:
    version = factories.make_environment_version(session, factories.make_environment(session, name))
    run = factories.make_run(session, version)
    return run, factories.make_rollouts(session, run, [BEST] * rows)


def _ids(session: Session, person: Person, **chosen: object) -> list[uuid.UUID]:
    items, _ = queue(session, ReviewFilter.model_validate(chosen), person.id, limit=50)
    return [item.id for item in items]


def _say(session: Session, flag: factories.Flag, verdict: Verdict) -> None:
    session.add(VerdictRecord(run_id=flag.run_id, rollout_id=flag.rollout_id, flag_id=flag.id, verdict=verdict))
    session.flush()


def test_suspicion_grows_with_each_flag_and_counts_by_the_reward(session: Session, person: Person) -> None:
    version = factories.make_environment_version(session)
    run = factories.make_run(session, version)
    poor, twice, once = factories.make_rollouts(session, run, [[0.0, 0.0, 0.0], BEST, BEST])
    for rollout, detector in ((poor, "a"), (twice, "a"), (twice, "b"), (once, "a")):
        factories.make_flag(session, run, rollout, detector=detector, score=0.8)
    assert _ids(session, person) == [twice.id, once.id, poor.id]
    suspicion = session.get_one(ReviewItem, twice.id).suspicion
    assert suspicion == pytest.approx(1 - (1 - 0.5 * 0.8) ** 2, abs=1e-6)


def test_a_detector_that_was_wrong_comes_later(session: Session, person: Person) -> None:
    run, rollouts = _run(session, 6)
    wrong = [factories.make_flag(session, run, rollout, detector="crier") for rollout in rollouts[:4]]
    right = factories.make_flag(session, run, rollouts[4], detector="watcher", score=0.7)
    still = factories.make_flag(session, run, rollouts[5], detector="crier", score=0.9)
    assert _ids(session, person)[-1] == right.rollout_id
    for flag in wrong:
        _say(session, flag, Verdict.HONEST)
    keeping.refresh(session)
    assert _ids(session, person) == [right.rollout_id, still.rollout_id]
    assert session.get_one(ReviewItem, still.rollout_id).suspicion == pytest.approx(0.9 / 6, abs=1e-6)


def test_one_example_of_a_cluster_comes_before_its_repeats(session: Session, person: Person) -> None:
    run, rollouts = _run(session, 4)
    for rollout, score in zip(rollouts[:3], (0.9, 0.8, 0.7), strict=True):
        factories.make_flag(session, run, rollout, score=score, cluster="sys.exit")
    alone = factories.make_flag(session, run, rollouts[3], score=0.1)
    assert _ids(session, person) == [rollouts[0].id, alone.rollout_id, rollouts[1].id, rollouts[2].id]
    first = session.get_one(ReviewItem, rollouts[0].id)
    assert first.rank == pytest.approx(0.45 * first.reward_share / sqrt(3), abs=1e-6)


def test_the_same_pattern_elsewhere_is_another_cluster(session: Session, person: Person) -> None:
    for name in ("maze", "chess"):
        run, rollouts = _run(session, 1, name)
        factories.make_flag(session, run, rollouts[0], cluster="7")
    assert all(item.rank > 0 for item in session.scalars(select(ReviewItem)))


def test_it_narrows_by_detector_environment_and_run(session: Session, person: Person) -> None:
    first, rollouts = _run(session)
    second, others = _run(session, name="chess")
    factories.make_flag(session, first, rollouts[0], detector="repeated_text")
    factories.make_flag(session, second, others[0], detector="early_exit")
    for chosen in ({"detector": "early_exit"}, {"environment": "chess"}, {"run": second.id}):
        assert _ids(session, person, **chosen) == [others[0].id]


@pytest.mark.parametrize("order", [Order.SUSPICION, Order.NEWEST])
def test_pages_hold_everything_once_and_next_walks_the_same_way(session: Session, person: Person, order: Order) -> None:
    run, rollouts = _run(session, 5)
    for number, rollout in enumerate(rollouts):
        factories.make_flag(session, run, rollout, score=0.2 * (number % 3 + 1))
    factories.make_flag(session, run, None, score=0.5)
    chosen = ReviewFilter(order=order)
    seen, after = [], None
    for _ in range(6):
        items, after = queue(session, chosen, person.id, after=after, limit=2)
        seen += [item.id for item in items]
        if after is None:
            break
    assert len(seen) == len(set(seen)) == 6
    walked = [next_id(session, chosen, person.id)]
    while len(walked) < 6:
        here = session.get_one(ReviewItem, walked[-1])
        walked.append(next_id(session, chosen, person.id, here))
    assert walked == seen
    assert next_id(session, chosen, person.id, session.get_one(ReviewItem, seen[-1])) == seen[0]


def test_what_is_assigned_to_another_is_left_to_them(session: Session, reviewer: TestClient, person: Person) -> None:
    run, rollouts = _run(session, 3)
    for rollout in rollouts:
        factories.make_flag(session, run, rollout)
    answer = reviewer.post("/api/v1/review/assignments", json={"person": str(person.id), "count": 2})
    theirs = answer.json()["items"]
    assert len(theirs) == 2
    mine = [item["id"] for item in reviewer.get("/api/v1/review/items").json()["items"]]
    assert set(mine) == {str(rollout.id) for rollout in rollouts} - set(theirs)
    assert {str(id) for id in _ids(session, person, mine=True)} == set(theirs)
    assert len(_ids(session, person)) == 3


def test_an_item_of_two_people_waits_until_both_judged(session: Session, reviewer: TestClient, person: Person) -> None:
    run, rollouts = _run(session, 1)
    factories.make_flag(session, run, rollouts[0])
    me = reviewer.get("/api/v1/me").json()["person_id"]
    for each in (str(person.id), me):
        assert reviewer.post(f"/review/{rollouts[0].id}/assign", data={"person": each}).status_code == 303
    reviewer.post(f"/review/{rollouts[0].id}", data={"verdict": "hack"})
    assert reviewer.get("/api/v1/review/items?mine=true").json()["items"] == []
    assert _ids(session, person, mine=True) == [rollouts[0].id]
    assert _ids(session, person, shown=Part.SECOND) == [rollouts[0].id]
    assert reviewer.get("/api/v1/review/items?shown=second").json()["items"] == []


def test_no_one_is_asked_who_may_not_judge(session: Session, reviewer: TestClient) -> None:
    run, rollouts = _run(session, 1)
    factories.make_flag(session, run, rollouts[0])
    viewer = factories.make_person(session, Role.VIEWER)
    answer = reviewer.post(f"/api/v1/review/items/{rollouts[0].id}/assignments", json={"person": str(viewer.id)})
    assert answer.status_code == 422


def test_flagged_and_blind_look_the_same_until_they_are_judged(session: Session, reviewer: TestClient) -> None:
    run, (flagged, drawn) = _run(session, 2)
    factories.make_flag(session, run, flagged, sentence="Strange indeed.", evidence={"excerpt": "4"}, cluster="x")
    session.add(AuditSample(id=new_id(), run_id=run.id, rollout_id=drawn.id, lot=0.5))
    keeping.place(session, [drawn.id])
    session.execute(update(Flag).values(created_at=datetime.now(UTC) + timedelta(minutes=1)))
    session.execute(update(AuditSample).values(created_at=datetime.now(UTC) + timedelta(minutes=2)))
    keeping.refresh(session)
    items = reviewer.get("/api/v1/review/items").json()["items"]
    for item in items:
        assert item.pop("id") == item.pop("rollout_id")
    assert items[0] == items[1]
    rows = [_row(reviewer, rollout.id) for rollout in (flagged, drawn)]
    assert rows[0] == rows[1]
    pages = [reviewer.get(f"/review/{each.id}?order=suspicion").text for each in (flagged, drawn)]
    for page, rollout in zip(pages, (flagged, drawn), strict=True):
        assert "Strange" not in page
        assert "<mark>" not in page
        assert "Audit sample" not in page
        assert "rollout" in page.replace(str(rollout.id), "")
    assert "Strange" not in reviewer.get("/review?order=suspicion").text
    assert "Strange indeed." in reviewer.get(f"/review/{flagged.id}?evidence=1").text
    assert "Audit sample: no detector flagged" in reviewer.get(f"/review/{drawn.id}?evidence=1").text


def _row(browser: TestClient, item_id: uuid.UUID) -> str:
    """Its line of the page, without what is its own by name."""
    (line,) = re.findall(
        rf'<tr data-href="/review/{item_id}.*?</tr>', browser.get("/review?order=suspicion").text, re.DOTALL
    )
    return re.sub(r"task \d+", "task", str(line).replace(str(item_id), ""))


def test_the_newest_is_what_was_stored_last_whenever_it_was_flagged_or_drawn(session: Session, person: Person) -> None:
    run, rollouts = _run(session, 4)
    for number, rollout in enumerate(rollouts):
        rollout.created_at = datetime.now(UTC) - timedelta(hours=number)
    session.flush()
    for rollout in (rollouts[1], rollouts[3]):
        factories.make_flag(session, run, rollout)
    for rollout in (rollouts[2], rollouts[0]):
        session.add(AuditSample(id=new_id(), run_id=run.id, rollout_id=rollout.id, lot=0.5))
    keeping.refresh(session)
    assert _ids(session, person, order=Order.NEWEST) == [rollout.id for rollout in rollouts]
    times = session.execute(select(ReviewItem.created_at).order_by(ReviewItem.created_at.desc())).scalars().all()
    assert times == [rollout.created_at for rollout in rollouts]


def test_the_list_follows_the_filters_on_the_page(viewer: TestClient, reviewer: TestClient, session: Session) -> None:
    run, rollouts = _run(session)
    factories.make_flag(session, run, rollouts[0], sentence="Strange indeed.")
    assert "Strange indeed." in viewer.get("/review").text
    reviewer.post(f"/review/{rollouts[0].id}", data={"verdict": "hack"})
    assert "Nothing waits for review" in viewer.get("/review").text
    assert "Strange indeed." in reviewer.get("/review?shown=reviewed").text
    assert "Strange indeed." in viewer.get("/review?shown=all").text


def _options(page: str, name: str) -> dict[str, str]:
    """The options of a filter: text by value; the selected one begins with a star."""
    (select_,) = re.findall(rf'<select name="{name}">(.*?)</select>', page, re.DOTALL)
    found = re.findall(r'<option value="([^"]*)"( selected)?>(.*?)</option>', select_)
    return {value: ("*" if is_chosen else "") + text for value, is_chosen, text in found}


def test_it_offers_detectors_environments_and_runs_that_have_items(session: Session, reviewer: TestClient) -> None:
    maze, rollouts = _run(session, 3)
    chess, others = _run(session, 1, "chess")
    _run(session, 1, "empty")
    maze.name, chess.name = "Night <run>", "Day run"
    for rollout in rollouts[:2]:
        factories.make_flag(session, maze, rollout, detector="early_exit")
    factories.make_flag(session, chess, others[0], detector="tampering")
    session.add(AuditSample(id=new_id(), run_id=maze.id, rollout_id=rollouts[2].id, lot=0.5))
    keeping.refresh(session)
    page = reviewer.get("/review").text
    assert _options(page, "detector") == {"": "*any", "early_exit": "early exit (2)", "tampering": "tampering (1)"}
    assert _options(page, "environment") == {"": "*any", "chess": "chess (1)", "maze": "maze (3)"}
    runs = {"": "*any", str(chess.id): "Day run (1)", str(maze.id): "Night &lt;run&gt; (3)"}
    assert _options(page, "run") == runs
    assert list(_options(page, "run")) == list(runs)
    narrowed = reviewer.get(f"/review?run={maze.id}&environment=maze").text
    assert _options(narrowed, "run") == {"": "any", str(maze.id): "*Night &lt;run&gt; (3)"}
    assert _options(narrowed, "detector") == _options(page, "detector")


def test_what_is_chosen_stays_chosen_where_nothing_is_left_of_it(session: Session, reviewer: TestClient) -> None:
    run, rollouts = _run(session, 1)
    flag = factories.make_flag(session, run, rollouts[0], detector="early_exit")
    reviewer.post(f"/review/{flag.rollout_id}", data={"verdict": "hack"})
    gone = new_id()
    page = reviewer.get(f"/review?detector=early_exit&environment=maze&run={run.id}").text
    assert _options(page, "detector") == {"": "any", "early_exit": "*early exit (0)"}
    assert _options(page, "environment") == {"": "any", "maze": "*maze (0)"}
    assert _options(page, "run") == {"": "any", str(run.id): f"*{run.name} (0)"}
    assert _options(reviewer.get(f"/review?run={gone}").text, "run")[str(gone)] == "*a deleted run (0)"
    assert _options(reviewer.get("/review?shown=reviewed").text, "run")[str(run.id)] == f"{run.name} (1)"


def test_runs_of_one_name_are_distinguished_and_only_the_newest_are_offered(
    session: Session, reviewer: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.review.screens.MOST_RUNS", 2)
    runs = []
    for number in range(3):
        run, rollouts = _run(session, 1, f"maze_{number}")
        run.name, run.created_at = "Night run", datetime.now(UTC) + timedelta(minutes=number)
        factories.make_flag(session, run, rollouts[0])
        runs.append(run)
    ends = {str(run.id): str(run.id).replace("-", "")[-8:] for run in runs}
    told = {value: f"Night run · {end} (1)" for value, end in ends.items()}
    oldest, older, newest = told
    shown = _options(reviewer.get("/review").text, "run")
    assert shown == {"": "*any", newest: told[newest], older: told[older]}
    assert _options(reviewer.get(f"/review?run={oldest}").text, "run")[oldest] == "*" + told[oldest]


def _stat(page: str, label: str) -> str:
    (value,) = re.findall(rf"<dt>{label}</dt>\s*<dd>(.*?)</dd>", page)
    return str(value).strip()


def test_the_counts_say_of_what_they_are(session: Session, reviewer: TestClient, person: Person) -> None:
    maze, rollouts = _run(session, 3)
    chess, others = _run(session, 1, "chess")
    for run, rollout in ((maze, rollouts[0]), (maze, rollouts[1]), (maze, rollouts[2]), (chess, others[0])):
        factories.make_flag(session, run, rollout)
    factories.make_flag(session, maze, rollouts[0], detector="tampering")
    body = {"person": str(person.id), "count": 1}
    assert reviewer.post("/api/v1/review/assignments?environment=maze", json=body).status_code == 201
    told = {}
    for query, counted in (
        ("", (3, 4)),
        ("?environment=maze", (2, 4)),
        (f"?run={chess.id}", (1, 4)),
        ("?mine=1", (0, 4)),
    ):
        page = reviewer.get(f"/review{query}").text
        assert (int(_stat(page, "In this list")), int(_stat(page, "Flagged"))) == counted
        told = reviewer.get(f"/api/v1/review/stats{query}").json()
        assert (told["matching"], told["waiting"]) == counted
    assert (told["by_detector"], told["by_environment"]) == ({}, {})
    told = reviewer.get("/api/v1/review/stats?shown=all").json()
    assert told["by_detector"] == {"repeated_text": 4, "tampering": 1}
    assert told["by_environment"] == {"chess": 1, "maze": 3}
