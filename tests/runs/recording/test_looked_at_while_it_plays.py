"""A running evaluation is scanned too, in whole batches and by detectors of rollouts."""

import uuid

import pytest
from sqlalchemy import func, select

from backend.core.queue import JUDGING_JOB, enqueue
from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.scans import EARLY, scan_early, scan_finished_run
from backend.detectors.tables import Flag
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from backend.rollouts.tables import Rollout
from tests.envhost_fixture import HostProcess, package_files
from tests.factories import (
    make_package_version,
    make_policy,
    make_queued_evaluation,
    make_rollouts,
    make_run,
    make_step,
)
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts import limits
from workers.storage.detectors import BATCH
from workers.tasks import detectors, evaluations
from workers.tasks.evaluations import evaluate
from workers.tasks.registry import JobContext


def looks_at(run_id: uuid.UUID) -> list[Job]:
    with transaction() as session:
        statement = select(Job).where(Job.run_id == run_id, Job.name == JUDGING_JOB).order_by(Job.id)
        return list(session.scalars(statement))


def test_the_first_look_is_requested_before_the_end(found_host: HostProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "BATCH", 8)
    monkeypatch.setattr(limits, "BATCH_SIZE", 4)
    with transaction() as session:
        version = make_package_version(session, package_files())
        policy = make_policy(session, configuration={"script": "constant", "constant": "3"})
        run_id = make_queued_evaluation(session, version, policy, tasks=40, concurrency=4).id
    assert evaluate(run_id, ScriptedPolicy("constant", "3")) is RunStatus.COMPLETED
    [job] = looks_at(run_id)
    with transaction() as session:
        last = session.scalar(select(func.max(Rollout.created_at)).where(Rollout.run_id == run_id))
    assert last is not None
    assert job.created_at < last
    assert job.arguments == {}, "it waited until the run was over, and sees it all"


def test_one_that_is_short_is_scanned_once(found_host: HostProcess) -> None:
    with transaction() as session:
        version = make_package_version(session, package_files())
        policy = make_policy(session, configuration={"script": "constant", "constant": "3"})
        run_id = make_queued_evaluation(session, version, policy, tasks=4, concurrency=4).id
    evaluate(run_id, ScriptedPolicy("constant", "3"))
    assert [job.arguments for job in looks_at(run_id)] == [{}]


def test_a_scan_that_began_early_is_followed_by_one_at_all(committed_database: str) -> None:
    with transaction() as session:
        run = make_run(session)
        make_rollouts(session, run, [[1.0, 1.0, 0.0]])
        for _ in range(2):
            scan_early(session, run.id)
    [early] = looks_at(run.id)
    assert early.arguments == {EARLY: True}
    with transaction() as session:
        session.get_one(Job, early.id).status = JobStatus.LEASED
        scan_finished_run(session, run)
    assert [job.arguments for job in looks_at(run.id)] == [{EARLY: True}, {}]


def test_its_own_scan_with_thresholds_is_followed_by_one_as_set(committed_database: str) -> None:
    own = {"altered": 0, "thresholds": ["repeated_text.suspicion=1"]}
    with transaction() as session:
        run = make_run(session)
        make_rollouts(session, run, [[1.0, 1.0, 0.0]])
        enqueue(session, JUDGING_JOB, queue=Queue.CPU, run_id=run.id, arguments=own)
        scan_finished_run(session, run)
    assert [job.arguments for job in looks_at(run.id)] == [own, {}]


@pytest.mark.slow
def test_only_whole_batches_are_scanned_early(committed_database: str) -> None:
    """The run is not flagged yet: each rollout passes an impossible task, which is flagged at the end."""
    babble = [make_step("win win win win " * 20, {})]
    with transaction() as session:
        run = make_run(session, status=RunStatus.RUNNING)
        made = make_rollouts(session, run, [[1.0, 1.0, 0.0]] * (BATCH + 10), metrics={"canary": 1})
        for rollout in (made[0], made[-1]):
            rollout.steps = babble
        first = made[0].id
    for arguments, flagged in (({EARLY: True}, 1), ({}, 2)):
        detectors.run(JobContext(uuid.uuid4(), run.id, arguments, 1))
        with transaction() as session:
            flags = session.scalars(select(Flag).where(Flag.run_id == run.id)).all()
        assert len([flag for flag in flags if flag.detector == "repeated_text"]) == flagged
        assert any(flag.rollout_id == first for flag in flags)
        assert any(flag.rollout_id is None for flag in flags) is not bool(arguments)
