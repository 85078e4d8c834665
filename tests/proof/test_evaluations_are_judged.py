"""Detectors automatically scan what an evaluation stored."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from backend.core.queue import enqueue
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from tests.proof.conftest import add_policy, asked, evaluate, run_of, seen, start, work

BABBLE = "win win win win " * 10


@pytest.mark.slow
def test_repeated_text_is_flagged_on_the_run_and_in_the_queue(ada: TestClient, publish: Callable[..., str]) -> None:
    version_id = publish(
        in_step="observation.done = True", manifest=lambda text: text.replace("amount, type: integer", "command")
    )
    babbler = add_policy(ada, "babbler", kind="scripted", script="constant", constant=BABBLE)
    run_id = evaluate(ada, version_id, babbler)

    assert run_of(run_id).status is RunStatus.COMPLETED
    flags = asked(ada.get(f"/api/v1/flags?run={run_id}"))["items"]
    assert [flag["detector"] for flag in flags] == ["repeated_text"] * 2
    for address in (f"/runs/{run_id}/flags", "/review?detector=repeated_text"):
        assert "repeats itself" in seen(ada, address)


def test_the_detectors_job_is_small_work_and_leaves_the_run_alone(
    ada: TestClient, publish: Callable[..., str], three: str
) -> None:
    run_id = start(ada, publish(), three)
    assert work() == ["evaluations.run", "judging.detect"]
    with transaction() as session:
        job = session.scalars(select(Job).where(Job.name == "judging.detect")).one()
    assert (job.run_id, job.queue, job.status) == (run_id, Queue.CPU, JobStatus.DONE)
    run = run_of(run_id)
    assert (run.status, run.attempt) == (RunStatus.COMPLETED, 1)


@pytest.mark.slow
def test_an_evaluation_that_stored_nothing_is_not_judged(
    ada: TestClient, publish: Callable[..., str], three: str
) -> None:
    start(ada, publish(in_reset="raise ValueError('no board')"), three)
    assert work() == ["evaluations.run"]


def test_a_resumed_run_gets_its_own_job_not_the_detectors(
    ada: TestClient, publish: Callable[..., str], three: str
) -> None:
    run_id = start(ada, publish(), three)
    asked(ada.post(f"/api/v1/runs/{run_id}/stop"))
    with transaction() as session:
        enqueue(session, "judging.detect", queue=Queue.CPU, run_id=run_id)
    asked(ada.post(f"/api/v1/runs/{run_id}/resume"))
    assert work() == ["evaluations.run", "judging.detect", "evaluations.run"]
    assert run_of(run_id).status is RunStatus.COMPLETED
