"""Asking for the checks of a version."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Job
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.service import create_environment, publish_version, start_check
from tests.environments.packages import make_files


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


def test_asked_for_again_while_it_runs_it_is_the_same_run(session: Session):
    environment = create_environment(session, None, "guess", make_files())
    version = publish_version(session, None, environment, revision=1)
    first = start_check(session, None, version, "guess")
    assert start_check(session, None, version, "guess") is first
    first.status = RunStatus.COMPLETED
    session.flush()
    assert start_check(session, None, version, "guess").id != first.id
