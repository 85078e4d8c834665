"""The sweeper: lost wake-ups, expired leases, jobs whose workers keep dying, and what expired."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from backend.core.queue import count_waiting, enqueue, get_celery
from backend.core.session import transaction
from backend.core.tables import Job, Worker
from backend.domain.vocabulary import JobStatus, Queue, Role, RunKind, RunStatus
from backend.settings import get_settings
from backend.team.tables import AttemptLimit, Person, WebSession
from backend.training.tables import Preflight
from tests.factories import make_environment_version, make_run
from tests.tasks.conftest import job_of, run_of
from workers.tasks import housekeeping, leases
from workers.tasks.execute import execute
from workers.tasks.registry import BODIES

Ask = Callable[..., uuid.UUID]
AGES_AGO = timedelta(hours=1)


def test_a_job_requested_while_redis_was_away_is_sent_later(
    ask: Ask, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_redis(monkeypatch, f"redis+socket://{tmp_path}/nobody.sock")
    job_id = ask("tests.write")
    assert job_of(job_id).status is JobStatus.QUEUED
    _use_redis(monkeypatch, redis_url)
    assert count_waiting(Queue.CPU) == 0
    _age(job_id)

    assert housekeeping.resend_wake_ups() == 1
    assert count_waiting(Queue.CPU) == 1


def test_a_wake_up_that_just_left_is_not_sent_again(ask: Ask) -> None:
    ask("tests.write")

    assert housekeeping.resend_wake_ups() == 0


def test_while_messages_wait_for_a_worker_no_more_are_added(ask: Ask) -> None:
    job_id = ask("tests.write")
    with transaction() as session:
        session.execute(update(Job).values(sent_at=func.now() - timedelta(seconds=20)))
    assert count_waiting(Queue.CPU) == 1

    assert housekeeping.resend_wake_ups() == 0
    _age(job_id)
    assert housekeeping.resend_wake_ups() == 1


def test_a_failed_attempt_waits_longer_each_time(ask: Ask) -> None:
    job_id = ask("tests.write")
    with get_celery().connection_for_write() as connection:
        get_celery().control.purge(connection)
    with transaction() as session:
        session.execute(update(Job).values(attempts=4, sent_at=func.now() - timedelta(seconds=12)))

    assert housekeeping.resend_wake_ups() == 0
    _age(job_id)
    assert housekeeping.resend_wake_ups() == 1


def test_an_expired_lease_is_queued_again(ask: Ask) -> None:
    job_id = ask("tests.write", with_run=True)
    taken = leases.claim(job_id, "gone")
    assert taken is not None
    assert housekeeping.requeue_expired() == 0
    _expire(job_id)

    assert housekeeping.requeue_expired() == 1

    job = job_of(job_id)
    assert (job.status, job.attempts, job.lease_owner) == (JobStatus.QUEUED, 1, None)
    assert leases.renew(job_id, taken[1]) is False


def test_a_job_that_kills_its_workers_is_given_up_with_its_run(ask: Ask) -> None:
    job_id = ask("tests.write", with_run=True, max_attempts=2)
    for _ in range(2):
        assert leases.claim(job_id, "gone") is not None
        _expire(job_id)
        housekeeping.requeue_expired()

    assert job_of(job_id).status is JobStatus.FAILED
    assert run_of(job_id).status is RunStatus.FAILED
    assert run_of(job_id).reason == "Its worker died or hung 2 times."


def test_one_who_lost_the_lease_cannot_end_the_job(ask: Ask) -> None:
    job_id = ask("tests.write")
    taken = leases.claim(job_id, "slow")
    assert taken is not None
    _expire(job_id)
    housekeeping.requeue_expired()
    leases.claim(job_id, "another")

    leases.complete(job_id, taken[1])
    leases.fail(job_id, taken[1], "too late")
    leases.hand_back(job_id, taken[1])

    job = job_of(job_id)
    assert (job.status, job.attempts, job.error) == (JobStatus.LEASED, 2, None)
    assert str(job.lease_owner).startswith("another/")


def test_what_expired_is_forgotten(installation: None) -> None:
    now = datetime.now(UTC)
    with transaction() as session:
        person = Person(email="a@example.org", name="A", role=Role.VIEWER)
        session.add(person)
        session.flush()
        for hours, letter in ((-1, b"a"), (1, b"b")):
            expires = now + timedelta(hours=hours)
            session.add(WebSession(person_id=person.id, token_hash=letter * 32, csrf_token="c", expires_at=expires))
        session.add(Worker(name="silent", queues=["cpu"], seen_at=now - AGES_AGO))
        session.add(Worker(name="here", queues=["cpu"], seen_at=now))
        for minutes, letter in ((-1, b"a"), (1, b"b")):
            session.add(AttemptLimit(key=letter * 32, count=1, resets_at=now + timedelta(minutes=minutes)))

    housekeeping.tidy()

    with transaction() as session:
        assert session.scalars(select(Worker.name)).all() == ["here"]
        assert session.scalars(select(WebSession.token_hash)).all() == [b"b" * 32]
        assert session.scalars(select(AttemptLimit.key)).all() == [b"b" * 32]


def test_old_pre_flights_are_forgotten_but_those_that_a_run_came_from(installation: None) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=8)
    with transaction() as session:
        version = make_environment_version(session)
        rows = [Preflight(version_id=version.id, created_at=at) for at in (long_ago, long_ago, datetime.now(UTC))]
        session.add_all(rows)
        session.flush()
        make_run(session, version, kind=RunKind.TRAINING, configuration={"preflight": str(rows[1].id)})
        kept = {rows[1].id, rows[2].id}

    housekeeping.tidy()

    with transaction() as session:
        assert set(session.scalars(select(Preflight.id))) == kept


def _use_redis(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    get_celery().close()
    monkeypatch.setenv("REDIS_URL", url)
    get_settings.cache_clear()
    get_celery.cache_clear()


def _age(job_id: uuid.UUID) -> None:
    with transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(sent_at=func.now() - AGES_AGO))


def _expire(job_id: uuid.UUID) -> None:
    with transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=func.now() - timedelta(seconds=1)))


def test_a_job_whose_afterword_breaks_ends_failed_and_does_not_come_back(ask: Ask, tmp_path: Path) -> None:
    poison = ask("tests.fail", with_run=True, max_attempts=1, breaks_after=True, file=str(tmp_path / "file"))
    expired = ask("tests.write", with_run=True, max_attempts=1, breaks_after=True)
    honest = ask("tests.write", with_run=True)
    for job_id in (expired, honest):
        assert leases.claim(job_id, "gone") is not None
        _expire(job_id)

    execute(poison)
    housekeeping.requeue_expired()

    assert [job_of(job_id).status for job_id in (poison, expired, honest)] == ["failed", "failed", "queued"]
    assert "the disk is made of cheese" in str(job_of(poison).error)
    assert [run_of(job_id).status for job_id in (poison, expired)] == [RunStatus.FAILED, RunStatus.FAILED]


def test_a_reason_that_cannot_be_stored_ends_the_job_all_the_same(ask: Ask) -> None:
    job_id = ask("tests.write", with_run=True, max_attempts=1)
    taken = leases.claim(job_id, "here")
    assert taken is not None

    leases.fail(job_id, taken[1], "a\x00b\ud800")

    assert job_of(job_id).status is JobStatus.FAILED
    assert run_of(job_id).status is RunStatus.FAILED


@pytest.mark.slow
def test_every_kind_of_job_ends_failed_whatever_its_arguments_are(installation: None) -> None:
    """A row that neither body nor follow-up can read is tried a few times, then given up."""
    with transaction() as session:
        jobs = [enqueue(session, name, queue=Queue.CPU, arguments={"nothing": None}) for name in sorted(BODIES)]
    for job in jobs:
        for _ in range(job.max_attempts + 1):
            execute(job.id)
    ended = {job.name: job_of(job.id) for job in jobs}
    assert {name: job.status for name, job in ended.items() if job.status is JobStatus.QUEUED} == {}
    assert all(job.error for job in ended.values() if job.status is JobStatus.FAILED)


def test_a_step_that_breaks_holds_up_none_of_the_others(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = ask("tests.write")
    assert leases.claim(job_id, "gone") is not None
    _expire(job_id)

    def broken() -> None:
        raise KeyError("an unreadable row")

    monkeypatch.setattr(housekeeping, "resend_wake_ups", broken)
    housekeeping.sweep(tmp_path / "heartbeat")

    assert job_of(job_id).status is JobStatus.QUEUED
    assert (tmp_path / "heartbeat").exists()
