"""Onset studies as pages and JSON: confirmed patterns, a study that is started, its result, and a roll back."""

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import STUDY_JOB
from backend.core.tables import Job
from backend.domain.studies.onset import OnsetOutcome
from backend.domain.vocabulary import CheckStatus, Queue, Role, RunKind, RunStatus
from backend.environments.tables import Certificate
from backend.runs.tables import Run
from backend.studies.tables import Study
from tests.factories import make_environment_version, make_points, make_run
from tests.studies.worlds import CLUSTER, judged, make_onset_study, make_sampled_onset_study, make_training
from tests.web_fixtures import ClientFor


@pytest.fixture
def run(session: Session) -> Run:
    """Judged hacks at steps 55 and 70; checkpoints at 10, 20, … 80."""
    run = make_training(session)
    judged(session, run, (55, 70))
    return run


def test_it_lists_what_is_confirmed_and_starts_a_search_in_one_click(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    text = client_for(Role.AUTHOR).get(f"/runs/{run.id}/studies").text
    assert "Find the onset" in text
    assert CLUSTER in text
    sent = {"detector": "judge_directed", "cluster": CLUSTER}
    assert client_for(Role.REVIEWER).post(f"/runs/{run.id}/studies/onset", data=sent).status_code == 403
    answer = client_for(Role.AUTHOR).post(f"/runs/{run.id}/studies/onset", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.id}/studies")
    study = session.scalars(select(Study)).one()
    settings = study.onset_settings
    assert (settings.detector, settings.cluster) == ("judge_directed", CLUSTER)
    assert (settings.tasks, settings.group_size) == (128, 1)
    job = session.scalars(select(Job).where(Job.name == STUDY_JOB)).one()
    assert (job.queue, job.arguments) == (Queue.CPU, {"study_id": str(study.id)})
    text = client_for(Role.VIEWER).get(f"/runs/{run.id}/studies").text
    assert "data-live" in text
    assert f"/studies/{study.id}/stop" not in text, "viewers cannot stop it"


def test_nothing_confirmed_shows_the_next_step_next(viewer: TestClient, session: Session) -> None:
    run = make_training(session)
    text = viewer.get(f"/runs/{run.id}/studies").text
    assert "No confirmed patterns yet" in text
    assert f"/review?run={run.id}" in text
    evaluation = make_run(session)
    assert "Find the onset" not in viewer.get(f"/runs/{evaluation.id}/studies").text, "an evaluation has no checkpoints"
    check = make_run(session, kind=RunKind.CHECK)
    assert viewer.get(f"/runs/{check.id}/studies").status_code == 404


@pytest.mark.parametrize("old", ["onset", "effort"])
def test_old_addresses_redirect(viewer: TestClient, run: Run, old: str) -> None:
    answer = viewer.get(f"/runs/{run.id}/{old}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, f"/runs/{run.id}/studies")


def test_what_was_found_stands_on_the_page_the_curve_and_in_the_report(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    make_points(session, run, "reward", {1: 0.2, 80: 0.9})
    study = make_sampled_onset_study(session, run)
    viewer = client_for(Role.VIEWER)
    text = viewer.get(f"/runs/{run.id}/studies").text
    for told in ("between step 40 and step 50", "20 of 48", "41.7", "starting policy", "step 40", "&lt; 0.001"):
        assert told in text, told
    assert 'data-marks="' in viewer.get(f"/runs/{run.id}").text
    report = viewer.get(f"/api/v1/runs/{run.id}/safeguards").json()["onsets"]
    assert [(each["honest_step"], each["hacking_step"], each["sampled"]) for each in report] == [(40, 50, 3)]
    assert "between step 40 and step 50" in viewer.get(f"/runs/{run.id}/safeguards").text
    response = viewer.get(f"/api/v1/studies/{study.id}").json()
    base, below, above = response["checkpoints"]
    assert [(each["step"], each["is_above"]) for each in (below, above)] == [(40, False), (50, True)]
    assert (base["name"], base["is_base"], base["is_above"]) == ("sft 300", True, None)
    assert above["low"] < 20 / 48 < above["high"]
    assert response["roll_back"]["step"] == 40
    assert (response["is_finished"], response["is_successful"]) == (True, True)


def test_one_click_branches_off_the_last_honest_checkpoint_on_the_newest_version(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    make_sampled_onset_study(session, run)
    repaired = make_environment_version(session, run.version.environment, number=run.version.number + 1)
    check = make_run(session, repaired, kind=RunKind.CHECK)
    session.add(Certificate(version_id=repaired.id, run_id=check.id, status=CheckStatus.PASSED, results=[]))
    session.flush()
    session.expire_all()
    trainer = client_for(Role.TRAINER)
    text = trainer.get(f"/runs/{run.id}/studies").text
    back = trainer.get(f"/api/v1/runs/{run.id}/studies").json()["last_honest"]
    assert (back["step"], back["newest_version"], back["is_certified"]) == (40, repaired.number, True)
    assert f'name="checkpoint_id" value="{back["checkpoint_id"]}"' in text
    sent = {"checkpoint_id": back["checkpoint_id"], "version": back["newest_version"]}
    assert trainer.post(f"/runs/{back['run_id']}/branch", data=sent).status_code == 303
    branch = session.scalars(select(Run).where(Run.source_run_id == run.id)).one()
    assert (branch.branch_step, branch.version_id, branch.kind) == (40, repaired.id, RunKind.TRAINING)


def test_a_version_without_a_certificate_is_offered_by_the_form(
    client_for: ClientFor, session: Session, run: Run
) -> None:
    make_sampled_onset_study(session, run)
    make_environment_version(session, run.version.environment, number=run.version.number + 1)
    text = client_for(Role.TRAINER).get(f"/runs/{run.id}/studies").text
    assert "has no valid certificate" in text
    assert f"/runs/{run.id}/branch?checkpoint_id=" in text
    assert 'name="checkpoint_id" value=' not in text
    assert "requires the role trainer" in client_for(Role.AUTHOR).get(f"/runs/{run.id}/studies").text


def test_json_starts_stops_and_resumes(client_for: ClientFor, session: Session, run: Run) -> None:
    author, path = client_for(Role.AUTHOR), f"/api/v1/runs/{run.id}/studies/onset"
    started = author.post(path, json={"detector": "judge_directed", "tasks": 16, "group_size": 2})
    assert started.status_code == 201
    study: dict[str, Any] = started.json()
    assert (study["done"], study["total"], study["evaluation_id"], study["is_finished"]) == (0, 8, None, False)
    assert author.post(path, json={"detector": "judge_directed"}).json()["id"] == study["id"], "it is in progress"
    own = f"/api/v1/studies/{study['id']}"
    assert author.post(f"{own}/stop").json()["status"] == "stopped"
    assert author.post(f"{own}/stop").status_code == 409
    assert author.post(f"{own}/resume").json()["status"] == "queued"
    assert author.get(f"/api/v1/studies/{uuid.uuid4()}").status_code == 404
    assert author.post(path, json={"detector": "gibberish"}).status_code == 422
    assert session.get_one(Study, uuid.UUID(study["id"])).status is RunStatus.QUEUED


def test_a_search_that_saw_nothing_marks_no_curve(viewer: TestClient, session: Session, run: Run) -> None:
    make_onset_study(session, run, outcome=OnsetOutcome.NOT_SEEN)
    (study,) = viewer.get(f"/api/v1/runs/{run.id}/studies").json()["studies"]
    assert (study["conclusion"], study["roll_back"]) == ("not seen in any sampled checkpoint", None)
    assert "data-marks" not in viewer.get(f"/runs/{run.id}").text


def test_what_a_detector_quotes_stays_text(viewer: TestClient, session: Session, run: Run) -> None:
    """A cluster may be a model's own words."""
    hostile = "\"'><script>alert(1)</script>"
    make_points(session, run, "reward", {1: 0.2, 80: 0.9})
    make_onset_study(session, run, 40, 50, cluster=hostile)
    judged(session, run, (60,), cluster=hostile)
    for path in ("", "/studies", "/safeguards"):
        text = viewer.get(f"/runs/{run.id}{path}").text
        assert "&lt;script&gt;alert(1)" in text or "\\u003cscript" in text, path
        assert "<script>alert(1)" not in text, path


def test_the_stream_of_what_is_over_ends(viewer: TestClient, session: Session, run: Run) -> None:
    make_sampled_onset_study(session, run)
    news = viewer.get(f"/runs/{run.id}/studies/events").text
    assert "event: studies" in news
    assert "event: end" in news
