"""The live stream of a run: its blocks, its end, and what a resumed stream need not send again."""

import re

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Queue, RunKind, RunStatus
from tests.factories import make_points, make_rollouts, make_run


def events(text: str) -> list[str]:
    return re.findall(r"^event: (\S+)$", text, re.MULTILINE)


def test_a_run_that_is_over_sends_its_blocks_and_ends(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1, 1, 0]] * 4)
    answer = viewer.get(f"/runs/{run.id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert set(events(answer.text)) == {
        "run_head",
        "run_progress",
        "run_tabs",
        "run_outcome",
        "run_figures",
        "run_newest",
        "end",
    }
    assert "1.200" in answer.text


def test_a_training_run_shows_its_charts_that_there_is_more(session: Session, viewer: TestClient) -> None:
    run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.STOPPED)
    make_points(session, run, "reward", {7: 0.5})
    text = viewer.get(f"/runs/{run.id}/events").text
    assert {"points", "run_checkpoints"} <= set(events(text))
    assert "'reward': 7" in text


def test_a_resumed_stream_sends_only_what_changed(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1, 1, 0]] * 4)
    first = viewer.get(f"/runs/{run.id}/events").text
    last_id = re.findall(r"^id: (\S+)$", first, re.MULTILINE)[-1]
    make_rollouts(session, run, [[0, 1, 0]], step=1)
    second = viewer.get(f"/runs/{run.id}/events", headers={"Last-Event-ID": last_id}).text
    assert "run_figures" in events(second)
    assert "end" not in events(second)


def test_the_tabs_follow_the_head_only(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    for tab in ("groups", "configuration"):
        text = viewer.get(f"/runs/{run.id}/{tab}/events").text
        assert events(text) == ["run_head", "run_progress", "run_tabs", "end"]
        assert re.search(rf'href="/runs/{run.id}/{tab}" aria-current="page"', text)
    assert events(viewer.get(f"/runs/{run.id}/log/events").text) == [
        "run_head",
        "run_progress",
        "run_tabs",
        "run_log",
        "end",
    ]
    assert events(viewer.get(f"/runs/{run.id}/flags/events").text) == [
        "run_head",
        "run_progress",
        "run_tabs",
        "run_flags",
        "end",
    ]


def test_the_newest_rollouts_come_by_themselves(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    make_rollouts(session, run, [(1.0, 1.0, 0.0)] * 3)
    text = viewer.get(f"/runs/{run.id}/rollouts/events").text
    assert events(text) == ["run_head", "run_progress", "run_tabs", "rollout_table", "end"]
    assert text.count("<tr data-href") == 3


def test_a_filtered_list_only_shows_how_many_came(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    make_rollouts(session, run, [(1.0, 1.0, 0.0)] * 3)
    text = viewer.get(f"/runs/{run.id}/rollouts/events", params={"where": "win = 1", "seen": 1}).text
    assert events(text) == ["run_head", "run_progress", "run_tabs", "rollout_news", "end"]


def test_a_run_is_followed_until_the_detectors_scanned_it(session: Session, viewer: TestClient) -> None:
    run = make_run(session)
    job = Job(name=JUDGING_JOB, queue=Queue.CPU, run_id=run.id)
    session.add(job)
    session.flush()
    assert f"/runs/{run.id}/flags/events" in viewer.get(f"/runs/{run.id}/flags").text
    job.status = JobStatus.DONE
    session.flush()
    assert f"/runs/{run.id}/flags/events" not in viewer.get(f"/runs/{run.id}/flags").text


def test_no_one_follows_without_signing_in(session: Session, stranger: TestClient) -> None:
    run = make_run(session)
    assert stranger.get(f"/runs/{run.id}/events").status_code in {303, 401}
