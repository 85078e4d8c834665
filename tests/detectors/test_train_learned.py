"""The learned detector is trained on stored verdicts by scans and by authors; pages and the API show its state."""

import uuid
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors import learned
from backend.detectors.tables import Flag, LearnedDetector
from backend.domain.vocabulary import JobStatus, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.review.tables import VerdictRecord
from backend.runs.tables import Run
from tests.detectors.test_detect_on_demand import carried_out
from tests.detectors.verdict_texts import made, trained
from tests.factories import make_environment, make_environment_version, make_rollouts, make_run, make_step
from workers.tasks.detectors import train
from workers.tasks.registry import JobContext

API = "/api/v1/detectors/learned/models"


def reviewed_run(session: Session, version: EnvironmentVersion, honest: int, hacks: int, seed: int = 0) -> Run:
    """A run whose rollouts all have a verdict; the last ones are hacks."""
    run = make_run(session, version)
    rollouts = make_rollouts(session, run, [[1.0, 1.0, 0.0]] * (honest + hacks))
    for number, (rollout, text) in enumerate(zip(rollouts, made(honest, hacks, seed), strict=True)):
        rollout.steps = [make_step(text.replies[0], {})]
        verdict = Verdict.HACK if number >= honest else Verdict.HONEST
        session.add(VerdictRecord(run_id=run.id, rollout_id=rollout.id, verdict=verdict))
    session.flush()
    return run


@pytest.fixture
def guess(session: Session) -> Environment:
    return make_environment(session, "guess")


@pytest.mark.slow
def test_a_scan_trains_it_on_stored_verdicts_and_again_when_they_have_grown(committed_database: str) -> None:
    with transaction() as session:
        version = make_environment_version(session)
        environment_id = version.environment_id
        reviewed_run(session, version, 160, 20)
        new = make_run(session, version)
        rollouts = make_rollouts(session, new, [[1.0, 1.0, 0.0]] * 30)
        for rollout, text in zip(rollouts, made(20, 10, seed=1), strict=True):
            rollout.steps = [make_step(text.replies[0], {})]
        new_id, hacks = new.id, {rollout.id for rollout in rollouts[20:]}
    carried_out(new_id)
    with transaction() as session:
        flags = session.scalars(select(Flag).where(Flag.run_id == new_id, Flag.detector == "learned")).all()
        assert {flag.rollout_id for flag in flags} == hacks
        assert "learned from 20 hacks and 160 honest rollouts with verdicts" in flags[0].sentence
        first = session.get_one(LearnedDetector, environment_id)
        assert (first.verdicts, first.trained_by, first.problem) == (180, None, "")
        assert not learned.is_due(session, environment_id)
        reviewed_run(session, version, 10, 10, seed=2)
        assert learned.is_due(session, environment_id)
    carried_out(new_id)
    with transaction() as session:
        again = session.get_one(LearnedDetector, environment_id)
        assert (again.verdicts, again.trained_at > first.trained_at) == (200, True)
        assert session.scalar(select(func.count()).where(Flag.detector == "learned")) == len(hacks)


def test_too_few_verdicts_train_nothing_and_a_failure_is_stored(committed_database: str) -> None:
    with transaction() as session:
        version = make_environment_version(session)
        environment_id, run_id = version.environment_id, reviewed_run(session, version, 20, 3).id
    carried_out(run_id)
    with transaction() as session:
        assert session.get(LearnedDetector, environment_id) is None
    train(JobContext(uuid.uuid4(), None, {"environment": str(environment_id), "person": None}, 1))
    with transaction() as session:
        assert "needs 10 different hacks" in session.get_one(LearnedDetector, environment_id).problem
        assert learned.models_of(session, {"": environment_id}) == {}


def test_the_page_shows_what_is_missing(viewer: TestClient, author: TestClient, guess: Environment, session: Session):
    assert "No verdicts yet" in viewer.get("/detectors/learned").text
    reviewed_run(session, make_environment_version(session, guess), 40, 3)
    [found] = viewer.get(API).json()["items"]
    needed = "Review 7 more hacks (3 of 10) and 109 more honest rollouts (40 of 149)."
    assert (found["environment"], found["missing"], found["trained_at"]) == ("guess", needed, None)
    page = author.get("/detectors/learned").text
    assert needed in page
    assert "/detectors/learned/models/guess" not in page, "there is nothing to train on"
    answer = author.post(f"{API}/guess")
    assert (answer.status_code, needed in answer.text) == (409, True)
    assert "learned" in viewer.get("/detectors").text


@pytest.mark.slow
def test_an_author_trains_it_again(
    viewer: TestClient, reviewer: TestClient, author: TestClient, guess: Environment, session: Session
):
    reviewed_run(session, make_environment_version(session, guess), 149, 10)
    learned.store(session, guess.id, trained(), 190, None)
    for client in (viewer, reviewer):
        assert client.post(f"{API}/guess").status_code == 403
    found = viewer.get(f"{API}/guess").json()
    assert (found["trained_hacks"], found["trained_honest"], found["is_automatic"], found["missing"]) == (
        30,
        160,
        True,
        "",
    )
    assert found["false_positives_at_most"] <= 0.02
    assert found["recall"]["found"] >= 28
    assert found["top"]
    page = author.get("/detectors/learned?environment=guess").text
    assert "on 30 hacks, 160 honest" in page
    assert "Retrain" in page
    assert "Retrain" not in viewer.get("/detectors/learned").text
    assert author.post("/detectors/learned/models/guess").headers["location"].startswith("/detectors/learned")
    started = author.post(f"{API}/guess").json()
    assert (started["is_finished"], started["is_successful"]) == (False, False)
    [job] = session.scalars(select(Job).where(Job.name == "detectors.train"))
    assert "training" in viewer.get("/detectors/learned").text
    job.status, job.error = JobStatus.FAILED, "Out of memory."
    session.flush()
    assert "Out of memory." in viewer.get("/detectors/learned").text
    assert author.post(f"{API}/nowhere").status_code == 404


def test_a_stricter_bound_of_the_environment_silences_it(author: TestClient, guess: Environment, session: Session):
    reviewed_run(session, make_environment_version(session, guess), 149, 10)
    learned.store(session, guess.id, trained(), 190, None)
    settings = "/api/v1/detectors/learned/settings/guess"
    assert author.patch(settings, json={"thresholds": {"rate": 0.01}}).status_code == 200
    found = author.get(f"{API}/guess").json()
    assert (found["threshold"], "149 of 299" in found["missing"]) == (None, True)
    assert author.patch(settings, json={"thresholds": {"rate": None}, "enabled": False}).status_code == 200
    assert "off" in author.get(f"{API}/guess").json()["missing"]
    row = session.get_one(LearnedDetector, guess.id)
    assert row.trained_at <= datetime.now(UTC)
