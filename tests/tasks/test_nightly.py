"""At night the newest versions are checked again, one at a time; what held before and fails now is drift."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.runs.tables import Run
from tests import factories
from workers.tasks.nightly_checks import check_again, compare_results

NIGHT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


@pytest.fixture
def newest(committed_database: str) -> EnvironmentVersion:
    """Certified 30 hours before that night, as was the version before it."""
    with transaction() as session:
        environment = factories.make_environment(session)
        for number in (1, 2):
            version = factories.make_environment_version(session, environment, number=number)
            run = factories.make_run(session, version, kind=RunKind.CHECK, created_at=NIGHT - timedelta(hours=30))
            session.add(Certificate(version_id=version.id, run_id=run.id, status=CheckStatus.PASSED, results=[]))
        factories.make_environment_version(session)  # nobody ever had it checked
        return version


def test_the_newest_version_is_checked_again_once(newest: EnvironmentVersion):
    assert check_again(NIGHT.replace(hour=12)) is None
    assert check_again(NIGHT) == newest.environment.name
    with transaction() as session:
        (run,) = session.scalars(select(Run).where(Run.status == RunStatus.QUEUED))
        assert (run.kind, run.version_id) == (RunKind.CHECK, newest.id)
        assert session.scalars(select(Job.name).where(Job.run_id == run.id)).all() == ["environments.check"]
    assert check_again(NIGHT) is None


def test_an_installation_that_sleeps_at_night_checks_by_day(newest: EnvironmentVersion):
    assert check_again(NIGHT.replace(hour=12) + timedelta(days=1)) == newest.environment.name


def test_drift_is_what_held_before():
    before = [
        {"check": "a", "status": "passed"},
        {"check": "b", "status": "failed"},
        {"check": "c", "status": "warned"},
    ]
    after = [{"check": each, "status": "failed"} for each in "abcd"]
    assert compare_results(before, after)[0] == ["a", "c"]


def test_what_passed_and_is_doubtful_or_cannot_be_scanned_is_weaker():
    before = [{"check": each, "status": "passed"} for each in "abcd"] + [{"check": "e", "status": "warned"}]
    after = [
        {"check": "a", "status": "warned"},
        {"check": "b", "status": "skipped", "applies": True},
        {"check": "c", "status": "skipped", "applies": False},
        {"check": "d", "status": "passed"},
        {"check": "e", "status": "warned"},
        {"check": "f", "status": "warned"},
    ]
    assert compare_results(before, after)[1] == ["a", "b"]
