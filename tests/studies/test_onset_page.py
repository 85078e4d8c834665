"""Onset as pages and JSON: what is confirmed, a search that is started, what it found, and one click back."""

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.queue import ONSET_JOB
from backend.core.tables import Job
from backend.domain.studies.onset import Outcome
from backend.domain.vocabulary import CheckStatus, Role, RunKind, RunStatus
from backend.environments.tables import Certificate
from backend.runs.tables import Run
from backend.studies.tables import OnsetSample, OnsetSearch
from tests.factories import make_environment_version, make_points, make_run
from tests.studies.onset_world import CLUSTER, judged, make_training
from tests.studies.test_onset_honest import known_onset
from tests.web_fixtures import ClientFor


@pytest.fixture
def run(session: Session) -> Run:
    """Judged hacks at steps 55 and 70; checkpoints at 10, 20, … 80."""
    run = make_training(session)
    judged(session, run, (55, 70))
    return run


def found(session: Session, run: Run) -> OnsetSearch:
    """A search that is over, with what it sampled."""
    steps = {row.step: row for row in session.scalars(select(Checkpoint).where(Checkpoint.run_id == run.id))}
    search = known_onset(session, run, 40, 50, is_monotone=True, honest_id=steps[40].id, hacking_id=steps[50].id)
    for step, flagged, is_above in ((300, 0, None), (40, 1, False), (50, 20, True)):
        session.add(
            OnsetSample(
                search_id=search.id,
                checkpoint_id=steps[step].id,
                run_id=make_run(session, run.version, run.policy, checkpoint_id=steps[step].id).id,
                is_base=is_above is None,
                step=0 if is_above is None else step,
                rollouts=48,
                flagged=flagged,
                chance=None if is_above is None else 0.5 if not is_above else 1e-7,
                is_above=is_above,
            )
        )
    session.flush()
    return search


def test_it_lists_what_is_confirmed_and_starts_a_search_in_one_click(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    text = client_for(Role.AUTHOR).get(f"/runs/{run.id}/onset").text
    assert "Find the onset" in text
    assert CLUSTER in text
    sent = {"detector": "judge_directed", "cluster": CLUSTER}
    assert client_for(Role.REVIEWER).post(f"/runs/{run.id}/onset", data=sent).status_code == 403
    answer = client_for(Role.AUTHOR).post(f"/runs/{run.id}/onset", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.id}/onset")
    search = session.scalars(select(OnsetSearch)).one()
    assert (search.detector, search.cluster, search.tasks, search.group_size) == ("judge_directed", CLUSTER, 128, 1)
    job = session.scalars(select(Job).where(Job.name == ONSET_JOB)).one()
    assert job.arguments == {"search_id": str(search.id)}
    text = client_for(Role.VIEWER).get(f"/runs/{run.id}/onset").text
    assert "data-live" in text
    assert f"/onset/{search.id}/stop" not in text, "a viewer looks on"


def test_nothing_confirmed_says_what_to_do_next(viewer: TestClient, session: Session) -> None:
    run = make_training(session)
    text = viewer.get(f"/runs/{run.id}/onset").text
    assert "No pattern is confirmed yet" in text
    assert f"/review?run={run.id}" in text
    assert viewer.get(f"/runs/{make_run(session).id}/onset").status_code == 404, "an evaluation has no checkpoints"


def test_what_was_found_stands_on_the_page_the_curve_and_in_the_report(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    make_points(session, run, "reward", {1: 0.2, 80: 0.9})
    search = found(session, run)
    viewer = client_for(Role.VIEWER)
    text = viewer.get(f"/runs/{run.id}/onset").text
    for told in ("between step 40 and step 50", "20 of 48", "41.7 %", "starting policy", "step 40", "&lt; 0.001"):
        assert told in text, told
    assert 'data-marks="' in viewer.get(f"/runs/{run.id}").text
    report = viewer.get(f"/api/v1/runs/{run.id}/safeguards").json()["onsets"]
    assert [(each["honest_step"], each["hacking_step"], each["sampled"]) for each in report] == [(40, 50, 3)]
    assert "between step 40 and step 50" in viewer.get(f"/runs/{run.id}/safeguards").text
    told_json = viewer.get(f"/api/v1/runs/{run.id}/onset/{search.id}").json()
    assert [(each["step"], each["is_above"]) for each in told_json["samples"]] == [(0, None), (40, False), (50, True)]
    assert told_json["samples"][2]["low"] < 20 / 48 < told_json["samples"][2]["high"]
    assert told_json["roll_back"]["step"] == 40


def test_one_click_branches_off_the_last_honest_checkpoint_on_the_newest_version(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    found(session, run)
    repaired = make_environment_version(session, run.version.environment, number=run.version.number + 1)
    check = make_run(session, repaired, kind=RunKind.CHECK)
    session.add(Certificate(version_id=repaired.id, run_id=check.id, status=CheckStatus.PASSED, results=[]))
    session.flush()
    session.expire_all()
    trainer = client_for(Role.TRAINER)
    text = trainer.get(f"/runs/{run.id}/onset").text
    back = trainer.get(f"/api/v1/runs/{run.id}/onset").json()["last_honest"]
    assert (back["step"], back["newest_version"], back["is_certified"]) == (40, repaired.number, True)
    assert f'name="checkpoint_id" value="{back["checkpoint_id"]}"' in text
    sent = {"checkpoint_id": back["checkpoint_id"], "version": back["newest_version"]}
    assert trainer.post(f"/runs/{back['run_id']}/branch", data=sent).status_code == 303
    branch = session.scalars(select(Run).where(Run.source_run_id == run.id)).one()
    assert (branch.branch_step, branch.version_id, branch.kind) == (40, repaired.id, RunKind.TRAINING)


def test_a_version_without_a_certificate_is_offered_by_the_form(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    found(session, run)
    make_environment_version(session, run.version.environment, number=run.version.number + 1)
    text = client_for(Role.TRAINER).get(f"/runs/{run.id}/onset").text
    assert "has no certificate in force" in text
    assert f"/runs/{run.id}/branch?checkpoint_id=" in text
    assert 'name="checkpoint_id"' not in text
    assert "needs the role trainer" in client_for(Role.AUTHOR).get(f"/runs/{run.id}/onset").text


def test_json_starts_stops_and_resumes(client_for: ClientFor, session: Session, run: Run) -> None:
    author, path = client_for(Role.AUTHOR), f"/api/v1/runs/{run.id}/onset"
    started = author.post(path, json={"detector": "judge_directed", "tasks": 16, "group_size": 2})
    assert started.status_code == 201
    search: dict[str, Any] = started.json()
    assert search["progress"] == {"sampled": 0, "at_most": 8, "run_id": None, "done": 0, "total": 0}
    assert author.post(path, json={"detector": "judge_directed"}).json()["id"] == search["id"], "it is under way"
    own = f"{path}/{search['id']}"
    assert author.post(f"{own}/stop").json()["status"] == "stopped"
    assert author.post(f"{own}/stop").status_code == 409
    assert author.post(f"{own}/resume").json()["status"] == "queued"
    assert author.get(f"{path}/{uuid.uuid4()}").status_code == 404
    assert author.post(path, json={"detector": "gibberish"}).status_code == 422
    assert session.get_one(OnsetSearch, uuid.UUID(search["id"])).status is RunStatus.QUEUED


def test_a_search_that_saw_nothing_marks_no_curve(viewer: TestClient, session: Session, run: Run) -> None:
    known_onset(session, run, None, None, outcome=Outcome.NOT_SEEN)
    (search,) = viewer.get(f"/api/v1/runs/{run.id}/onset").json()["searches"]
    assert (search["found"], search["roll_back"]) == ("not seen in any sampled checkpoint", None)
    assert "data-marks" not in viewer.get(f"/runs/{run.id}").text


def test_what_a_detector_quotes_stays_text(viewer: TestClient, session: Session, run: Run) -> None:
    """A cluster may be a model's own words."""
    hostile = "\"'><script>alert(1)</script>"
    make_points(session, run, "reward", {1: 0.2, 80: 0.9})
    known_onset(session, run, 40, 50, cluster=hostile)
    judged(session, run, (60,), cluster=hostile)
    for path in ("", "/onset", "/safeguards"):
        text = viewer.get(f"/runs/{run.id}{path}").text
        assert "&lt;script&gt;alert(1)" in text or "\\u003cscript" in text, path
        assert "<script>alert(1)" not in text, path


def test_the_stream_of_what_is_over_ends(viewer: TestClient, session: Session, run: Run) -> None:
    found(session, run)
    news = viewer.get(f"/runs/{run.id}/onset/events").text
    assert "event: onset_searches" in news
    assert "event: end" in news
