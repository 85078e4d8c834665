"""Scans of a stored run on demand: started from page and JSON, by whom, and their results."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Phase, Queue, Role, RunKind
from tests.detectors.test_detect_on_demand import evaluation
from tests.factories import make_rollouts, make_run
from tests.web_fixtures import ClientFor


def test_it_is_requested_by_page_and_json_and_one_scan_at_a_time(session: Session, client_for: ClientFor) -> None:
    run = evaluation(session)
    client = client_for(Role.AUTHOR)
    assert client.get(f"/api/v1/runs/{run.id}/detection").json() is None
    assert "No scan yet" in client.get(f"/runs/{run.id}/flags").text
    answer = client.post(f"/runs/{run.id}/detection", data={"altered": "5"})
    assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, f"/runs/{run.id}/flags")
    first = client.get(f"/api/v1/runs/{run.id}/detection").json()
    assert (first["status"], first["altered"], first["new_flags"], first["is_finished"]) == ("queued", 5, None, False)
    assert "waiting for a worker" in client.get(f"/runs/{run.id}/flags").text
    second = client.post(f"/api/v1/runs/{run.id}/detection", json={})
    assert (second.status_code, second.json()["id"]) == (202, first["id"])
    [job] = session.scalars(select(Job).where(Job.run_id == run.id, Job.name == JUDGING_JOB))
    job.status, job.error = JobStatus.FAILED, "No env host."
    session.flush()
    assert "No env host." in client.get(f"/runs/{run.id}/flags").text
    assert client.post(f"/api/v1/runs/{run.id}/detection", json={}).json()["id"] != first["id"]


def test_the_result_stands_on_the_page(session: Session, client_for: ClientFor) -> None:
    run = evaluation(session)
    progress = {"done": 23, "total": 23, "phase": "stored rollouts", "flags": {"repeated_text": 3}, "over": True}
    enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run.id, arguments={"progress": progress})
    page = client_for(Role.VIEWER).get(f"/runs/{run.id}/flags").text
    assert "3 new flags" in page
    assert "Rollouts with altered replies" not in page, "a viewer asks for nothing"


def test_who_may_and_what_is_refused(session: Session, client_for: ClientFor) -> None:
    run = evaluation(session)
    for role in (Role.VIEWER, Role.REVIEWER):
        assert client_for(role).post(f"/api/v1/runs/{run.id}/detection", json={}).status_code == 403
    author = client_for(Role.AUTHOR)
    assert author.post(f"/api/v1/runs/{run.id}/detection", json={"altered": -1}).status_code == 422
    assert author.post(f"/api/v1/runs/{uuid.uuid4()}/detection", json={}).status_code == 404
    check = make_run(session, run.version, kind=RunKind.CHECK)
    empty = make_run(session, run.version, kind=RunKind.TRAINING)
    make_rollouts(session, empty, [[0.0, 1.0, 0.0]], phase=Phase.WARM_UP)
    played = make_run(session, run.version, kind=RunKind.PLAY)
    for each, why in ((check, "cheat on purpose"), (played, "Hand plays"), (empty, "no completed rollouts")):
        answer = author.post(f"/api/v1/runs/{each.id}/detection", json={})
        assert answer.status_code == 409
        assert why in answer.text


def test_re_scores_and_replays_are_scanned_when_requested(session: Session, client_for: ClientFor) -> None:
    run = evaluation(session)
    for kind in (RunKind.RESCORE, RunKind.REPLAY):
        run.kind = kind
        session.flush()
        answer = client_for(Role.AUTHOR).post(f"/api/v1/runs/{run.id}/detection", json={})
        assert answer.status_code == 202


def test_a_scan_may_be_given_thresholds(session: Session, client_for: ClientFor) -> None:
    run = evaluation(session)
    client = client_for(Role.AUTHOR)
    wrong = client.post(f"/api/v1/runs/{run.id}/detection", json={"thresholds": ["repeated_text.shares=1"]})
    assert (wrong.status_code, "it has repeated_share" in wrong.text) == (422, True)
    given = "repeated_text.repeated_share=0.4, paid_exit.suspicion=0.6"
    assert client.post(f"/runs/{run.id}/detection", data={"thresholds": given}).status_code == 303
    look = client.get(f"/api/v1/runs/{run.id}/detection").json()
    assert look["thresholds"] == given.split(", ")
    [job] = session.scalars(select(Job).where(Job.run_id == run.id, Job.name == JUDGING_JOB))
    job.arguments = {**job.arguments, "progress": {"over": True}}
    session.flush()
    text = client.get(f"/runs/{run.id}/flags").text
    assert (f"with <code>{given}</code>" in text, f'value="{given}"' in text) == (True, True)
