"""Nightly checks, from the queued job to the certificate and the notices: drift, doubt, and interruptions."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.manifest import read_manifest
from backend.domain.notifications.notices import NoticeKind
from backend.domain.rollouts.rollout import task_of
from backend.domain.vocabulary import CheckStatus, JobStatus, RunKind, RunStatus, Split
from backend.environments.library import load_package
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.errors import InvalidInput
from backend.notifications.tables import Notice
from backend.review.tables import VerdictFixture
from backend.runs.tables import Run
from backend.training.service import reason_without_certificate
from tests.envhost_fixture import HostProcess
from tests.environments.checks.bent import bent
from tests.factories import make_environment, make_package_version, make_person, make_run
from workers.environments.checks.registry import CHECKS
from workers.tasks import leases
from workers.tasks.execute import execute
from workers.tasks.nightly_checks import check_again

DAYS_AGO = timedelta(hours=50)
SOUND = "number_guess"


def certified(files: dict[str, str]) -> uuid.UUID:
    """A version of which every check passed two days ago."""
    with transaction() as session:
        version = make_package_version(session, files, make_environment(session, "guess"))
        run = make_run(session, version, kind=RunKind.CHECK, created_at=datetime.now(UTC) - DAYS_AGO)
        results = [{"check": check.id, "status": "passed", "applies": True} for check in CHECKS]
        at = run.created_at
        values = {"status": CheckStatus.PASSED, "results": results, "created_at": at}
        session.add(Certificate(version_id=version.id, run_id=run.id, **values))
        return version.id


def checked_at_night() -> Run:
    """As housekeeping asks for it and a worker does it."""
    assert check_again() == "guess"
    with transaction() as session:
        job = session.scalars(select(Job).where(Job.name == "environments.check", Job.status == JobStatus.QUEUED)).one()
    execute(job.id)
    with transaction() as session:
        assert job.run_id is not None
        return session.get_one(Run, job.run_id)


def notices(kind: NoticeKind = NoticeKind.CERTIFICATE_EXPIRED) -> list[Notice]:
    with transaction() as session:
        return list(session.scalars(select(Notice).where(Notice.kind == kind).order_by(Notice.created_at)))


def status_of(version_id: uuid.UUID) -> CheckStatus:
    with transaction() as session:
        found = session.get_one(EnvironmentVersion, version_id).certificate
        assert found is not None
        return found


def needs_override(version_id: uuid.UUID) -> bool:
    """Is training on it refused without a reason?"""
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, version_id)
        session.refresh(version, ["environment"])
        try:
            reason_without_certificate([version], None)
        except InvalidInput:
            return True
        return False


@pytest.mark.slow
def test_a_judged_hack_that_pays_puts_the_certificate_out_of_force(found_host: HostProcess) -> None:
    files = load_package(SOUND)
    version_id = certified(files)
    assert not needs_override(version_id)
    judge(version_id, files)
    run = checked_at_night()
    assert (run.status, run.created_by) == (RunStatus.COMPLETED, None)
    assert run.summary["drift"] == ["judged_fixtures_hold"]
    assert (run.reason or "").startswith("Drift: judged_fixtures_hold")
    assert status_of(version_id) is CheckStatus.FAILED
    assert needs_override(version_id)
    [notice] = notices()
    assert notice.title == "The certificate of guess v1 is out of force"
    assert notice.evidence["checks"] == ["judged_fixtures_hold"]
    assert notice.run_id == run.id


def judge(version_id: uuid.UUID, files: dict[str, str]) -> None:
    """A reviewer marks a rewarded episode as a hack."""
    task = task_of(read_manifest(files["openenv.yaml"]), Split.HELDOUT, 7)
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, version_id)
        session.add(
            VerdictFixture(
                environment_id=version.environment_id,
                task={name: getattr(task, name) for name in ("split", "index", "level", "seed", "arguments")},
                replies=[{"reply": "<guess>50</guess>"}],
                lowest=None,
                highest=-1.0,
                created_by=make_person(session).id,
            )
        )


@pytest.mark.slow
def test_a_check_that_passed_and_is_doubtful_is_reported_and_the_certificate_stays_in_force(
    found_host: HostProcess,
) -> None:
    version_id = certified(bent(SOUND, "openenv.yaml", "scripts: [gold, teacher, partial, wrong]", "scripts: []"))
    run = checked_at_night()
    assert run.summary["drift"] == [], run.summary
    assert run.summary["weaker"]
    assert status_of(version_id) is CheckStatus.WARNED
    assert not needs_override(version_id)
    [notice] = notices()
    assert notice.title == "The certificate of guess v1 is weaker"
    assert notice.evidence["checks"] == run.summary["weaker"]


@pytest.mark.slow
def test_a_night_without_drift_is_not_reported(found_host: HostProcess) -> None:
    version_id = certified(load_package(SOUND))
    assert checked_at_night().summary["drift"] == []
    assert status_of(version_id) is CheckStatus.PASSED
    assert notices() == []


@pytest.fixture
def version_id(committed_database: str) -> uuid.UUID:
    return certified({"openenv.yaml": load_package(SOUND)["openenv.yaml"]})


def broken_night() -> uuid.UUID:
    """The check's worker dies repeatedly."""
    assert check_again() == "guess"
    with transaction() as session:
        job = session.scalars(select(Job).where(Job.name == "environments.check", Job.status == JobStatus.QUEUED)).one()
        leases.give_up(session, job, "Its worker died or hung 3 times.")
    with transaction() as session:
        session.execute(update(Run).values(created_at=Run.created_at - DAYS_AGO))
    assert job.run_id is not None
    return job.run_id


def test_checks_that_break_off_leave_the_certificate_and_are_reported_the_second_time(version_id: uuid.UUID) -> None:
    broken_night()
    assert notices() == []
    assert len(notices(NoticeKind.RUN_FAILED)) == 1
    second = broken_night()
    [notice] = notices()
    assert notice.title == "The certificate of guess v1 could not be confirmed for two nights"
    assert "Its worker died or hung 3 times." in notice.text
    assert notice.run_id == second
    broken_night()
    assert len(notices()) == 1, "it is said once"
    assert status_of(version_id) is CheckStatus.PASSED
    assert not needs_override(version_id)


def test_a_check_between_them_begins_the_count_again(version_id: uuid.UUID) -> None:
    broken_night()
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, version_id)
        make_run(session, version, kind=RunKind.CHECK, created_at=datetime.now(UTC) - DAYS_AGO)
    broken_night()
    assert notices() == []


def test_a_check_that_a_person_requested_is_theirs_to_look_after(version_id: uuid.UUID) -> None:
    for _ in range(2):
        with transaction() as session:
            version, person = session.get_one(EnvironmentVersion, version_id), make_person(session)
            values = {"kind": RunKind.CHECK, "status": RunStatus.RUNNING, "created_by": person.id}
            run = make_run(session, version, **values)
            job = Job(name="environments.check", queue="cpu", run_id=run.id)
            session.add(job)
            session.flush()
            leases.give_up(session, job, "It broke.")
    assert notices() == []
