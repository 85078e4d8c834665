"""Asking for the checks of a version."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.environments.service import ChecksAreRunning, create_environment, publish_version, start_check
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput
from tests.environments.packages import make_files
from tests.factories import make_checkpoint, make_policy


def test_it_queues_one_run_and_its_job(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    version = publish_version(session, None, environment, revision=1)
    run = start_check(session, None, version, "guess")
    assert (run.kind, run.status, run.columns, run.weights) == (
        RunKind.CHECK,
        RunStatus.QUEUED,
        ["win", "format"],
        [1.0, 0.2],
    )
    [job] = session.scalars(select(Job).where(Job.run_id == run.id))
    assert job.name == "environments.check"


def test_requested_again_while_it_runs_it_is_the_same_run(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    version = publish_version(session, None, environment, revision=1)
    first = start_check(session, None, version, "guess")
    assert start_check(session, None, version, "guess") is first
    first.status = RunStatus.COMPLETED
    session.flush()
    assert start_check(session, None, version, "guess").id != first.id


def test_a_policy_by_its_name_is_kept_on_the_run(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    version = publish_version(session, None, environment, revision=1)
    policy = make_policy(session, name="mind")
    run = start_check(session, None, version, "guess", policy="mind")
    assert run.configuration["reference"]["policy_id"] == str(policy.id)
    assert start_check(session, None, version, "guess", policy=str(policy.id)) is run
    assert start_check(session, None, version, "guess") is run
    with pytest.raises(InvalidInput):
        start_check(session, None, version, "guess", policy="nobody")


def test_another_policy_waits_for_the_end_of_the_checks(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    version = publish_version(session, None, environment, revision=1)
    make_policy(session, name="mind")
    start_check(session, None, version, "guess")
    with pytest.raises(ChecksAreRunning):
        start_check(session, None, version, "guess", policy="mind")


def test_a_local_policy_is_measured_with_its_best_checkpoint_where_models_run(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    version = publish_version(session, None, environment, revision=1)
    policy = make_policy(session, name="grid", kind=PolicyKind.LOCAL, configuration={})
    with pytest.raises(InvalidInput) as refused:
        start_check(session, None, version, "guess", policy="grid")
    assert "no weights" in refused.value.fields["policy"]
    make_checkpoint(session, policy, step=2)
    best = make_checkpoint(session, policy, step=1, is_best=True)
    run = start_check(session, None, version, "guess", policy="grid")
    [job] = session.scalars(select(Job).where(Job.run_id == run.id))
    assert (job.queue, run.configuration["reference"]["checkpoint_id"]) == (Queue.GPU, str(best.id))


def test_page_and_json_start_it_with_a_policy(session: Session, author: TestClient, version: EnvironmentVersion):
    make_policy(session, name="mind")
    assert "mind" in author.get("/environments/guess/versions/1").text
    asked = author.post("/api/v1/environments/guess/versions/1/checks", json={"policy": "mind"})
    assert (asked.status_code, asked.json()["policy"]) == (201, "mind")
    again = author.post("/environments/guess/versions/1/checks", data={"policy": "random"})
    assert again.status_code in {409, 422}
    [listed] = author.get("/api/v1/environments/guess/versions/1/checks").json()["items"]
    assert listed["policy"] == "mind"
