"""Stopping and resuming runs."""

import uuid

from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import enqueue
from backend.core.tables import Job
from backend.domain.vocabulary import Queue, RunKind, RunStatus
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from tests.factories import make_run


def queued(session: Session, kind: RunKind = RunKind.EVALUATION, status: RunStatus = RunStatus.QUEUED) -> Run:
    run = make_run(session, kind=kind, status=status, started_at=None, ended_at=None, attempt=0)
    enqueue(session, "evaluations.run", queue=Queue.CPU, run_id=run.id, arguments={"keep": 1})
    session.expunge_all()  # requests load it themselves, as they do in life
    return session.get_one(Run, run.id)


def test_a_run_begins_and_ends(session: Session) -> None:
    run = queued(session)
    assert begin_run(session, run)
    assert (run.status, run.attempt) == (RunStatus.RUNNING, 1)
    finish_run(session, run, RunStatus.COMPLETED, {"seconds": 1})
    assert (run.status, run.summary["seconds"]) == (RunStatus.COMPLETED, 1)
    assert run.ended_at is not None
    assert not begin_run(session, run)


def test_a_queued_run_stops_at_once_and_is_then_left_alone(session: Session, author: TestClient) -> None:
    run = queued(session)
    assert author.post(f"/runs/{run.id}/stop").status_code == 303
    assert run.status is RunStatus.STOPPED
    assert not begin_run(session, run)


def test_a_running_run_is_asked_to_stop(session: Session, author: TestClient) -> None:
    run = queued(session)
    begin_run(session, run)
    author.post(f"/runs/{run.id}/stop")
    assert run.status is RunStatus.RUNNING
    assert run.stop_requested_at is not None
    assert "Current rollouts are canceled, finished ones are kept." in author.get(f"/runs/{run.id}").text


def test_a_run_that_is_over_cannot_be_stopped(session: Session, author: TestClient) -> None:
    run = make_run(session)
    answer = author.post(f"/api/v1/runs/{run.id}/stop")
    assert answer.status_code == 409
    assert "completed already" in answer.json()["detail"]


def test_resuming_queues_a_job_again_for_each_worker(session: Session, author: TestClient) -> None:
    run = queued(session)
    run.configuration = {**run.configuration, "workers": 3}
    session.flush()
    author.post(f"/runs/{run.id}/stop")
    assert author.post(f"/runs/{run.id}/resume").status_code == 303
    assert (run.status, run.stop_requested_at, run.reason) == (RunStatus.QUEUED, None, None)
    jobs = session.scalars(select(Job).where(Job.run_id == run.id).order_by(Job.id)).all()
    assert [(job.name, job.queue) for job in jobs] == [("evaluations.run", Queue.CPU)] * 4
    assert len({job.arguments["batch"] for job in jobs[1:]}) == 1


def test_resuming_other_work_queues_the_same_job_again(session: Session, author: TestClient) -> None:
    run = queued(session, kind=RunKind.CHECK)
    author.post(f"/runs/{run.id}/stop")
    author.post(f"/runs/{run.id}/resume")
    jobs = session.scalars(select(Job).where(Job.run_id == run.id)).all()
    assert [job.arguments for job in jobs] == [{"keep": 1}] * 2


def test_a_completed_run_cannot_be_resumed(session: Session, author: TestClient) -> None:
    run = make_run(session)
    assert author.post(f"/api/v1/runs/{run.id}/resume").status_code == 409


def test_training_needs_a_trainer(session: Session, author: TestClient, trainer: TestClient) -> None:
    run = queued(session, RunKind.TRAINING)
    assert author.post(f"/runs/{run.id}/stop").status_code == 403
    assert "Stop" not in author.get(f"/runs/{run.id}").text.split("run-facts")[0]
    assert trainer.post(f"/runs/{run.id}/stop").status_code == 303


def test_a_viewer_may_not(session: Session, viewer: TestClient) -> None:
    run = queued(session)
    assert viewer.post(f"/runs/{run.id}/stop").status_code == 403
    assert viewer.post(f"/api/v1/runs/{run.id}/resume").status_code == 403


def test_a_missing_run_is_not_found(author: TestClient) -> None:
    assert author.post(f"/runs/{uuid.UUID(int=1)}/stop").status_code == 404
    assert author.post("/runs/nonsense/stop").status_code == 404


def test_what_failed_in_a_completed_evaluation_is_played_again(session: Session, author: TestClient) -> None:
    run = queued(session, status=RunStatus.COMPLETED)
    run.summary = {"completed": 396, "failed": 4}
    session.flush()
    assert "Retry 4 failed" in author.get(f"/runs/{run.id}").text
    assert author.post(f"/api/v1/runs/{run.id}/resume").status_code == 200
    assert run.status is RunStatus.QUEUED
