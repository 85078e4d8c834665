"""The job that publishing asks for: everything that was played on other versions is queued to be graded again."""

import uuid

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import Role, RunKind
from backend.runs.tables import Run
from tests.factories import make_environment_version, make_member, make_rollouts, make_run
from workers.tasks.registry import JobContext, find_body


@pytest.fixture
def asked(committed_database: str) -> JobContext:
    """An evaluation on version 1; version 2 was published."""
    with transaction() as session:
        old = make_environment_version(session)
        make_rollouts(session, make_run(session, old), [[1.0, 1.0, 0.0]] * 2)
        new = make_environment_version(session, old.environment, number=2)
        person = make_member(session, Role.AUTHOR)
        arguments = {"version_id": str(new.id), "person_id": str(person.person_id)}
    return JobContext(uuid.uuid4(), None, arguments, 1)


def test_it_queues_a_rescore_of_each_part_once(asked: JobContext) -> None:
    for _ in range(2):
        find_body("rescoring.history")(asked)
    with transaction() as session:
        (run,) = session.scalars(select(Run).where(Run.kind == RunKind.RESCORE)).all()
        told = {"version_id": str(run.version_id), "person_id": str(run.created_by)}
        assert told == asked.arguments


def test_without_a_history_it_does_nothing(asked: JobContext) -> None:
    with transaction() as session:
        alone = make_environment_version(session)
        arguments = {**asked.arguments, "version_id": str(alone.id)}
    find_body("rescoring.history")(JobContext(uuid.uuid4(), None, arguments, 1))
    with transaction() as session:
        assert session.scalars(select(Run).where(Run.kind == RunKind.RESCORE)).all() == []
