"""Several jobs play one evaluation: real worker processes, a real env host and a real Postgres."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.manifest import read_manifest
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import JobStatus, Queue, RunStatus
from backend.rollouts.tables import Group, Rollout
from backend.runs.evaluations import JOB, enqueue_shares
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT
from tests.envhost_fixture import HostProcess, package_files
from tests.factories import make_package_version, make_policy, make_queued_evaluation
from tests.runs.recording.conftest import make_rollout, run_of
from workers.storage.recorder import RunRecorder
from workers.storage.runs import WorkClaim
from workers.tasks.execute import execute
from workers.tasks.housekeeping import requeue_expired

SLOW = {"name": "slow", "in_step": "import time; time.sleep(0.02)"}


@pytest.fixture
def plan_shared(found_host: HostProcess) -> Callable[..., uuid.UUID]:
    """A queued evaluation with a job for each of its workers."""

    def plan_shared(**plan: Any) -> uuid.UUID:
        with transaction() as session:
            version = make_package_version(session, package_files(**SLOW))
            policy = make_policy(session, configuration={"script": "constant", "constant": "3"})
            chosen = {"tasks": 60, "group_size": 2, "concurrency": 4, "workers": 2, **plan}
            run = make_queued_evaluation(session, version, policy, **chosen)
            enqueue_shares(session, run, JOB, Queue.CPU, chosen["workers"])
            return run.id

    return plan_shared


def jobs_of(run_id: uuid.UUID) -> list[Job]:
    with transaction() as session:
        return list(session.scalars(select(Job).where(Job.run_id == run_id, Job.name == JOB).order_by(Job.id)))


def start_worker(job: Job) -> subprocess.Popen[bytes]:
    """A process that carries the job out as a worker does."""
    program = "import sys, uuid; from workers.tasks.execute import execute; execute(uuid.UUID(sys.argv[1]))"
    return subprocess.Popen([sys.executable, "-c", program, str(job.id)], cwd=PROJECT_ROOT)


def played(run_id: uuid.UUID) -> Counter[tuple[int, int, str]]:
    with transaction() as session:
        query = select(Group.ordinal, Rollout.member, Rollout.status).join(Group, Group.id == Rollout.group_id)
        return Counter(tuple(row) for row in session.execute(query.where(Rollout.run_id == run_id)))  # type: ignore[misc]


def wait_until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


WHOLE = Counter({(task, member, "completed"): 1 for task in range(60) for member in range(2)})


@pytest.mark.slow
def test_two_workers_play_one_run_and_the_last_one_sums_it_up(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared()
    workers = [start_worker(job) for job in jobs_of(run_id)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    row = run_of(run_id)
    assert (row.status, row.reason, row.next_seq) == (RunStatus.COMPLETED, None, 121)
    assert played(run_id) == WHOLE
    assert (row.summary["completed"], row.progress["done"]) == (120, 120)
    claims = [job.arguments["claims"] for job in jobs_of(run_id)]
    assert all(claims)
    assert sorted(task for own in claims for start, stop in own for task in range(start, stop)) == list(range(60))
    assert {job.status for job in jobs_of(run_id)} == {JobStatus.DONE}


@pytest.mark.slow
def test_when_one_of_two_is_killed_another_continues_with_its_share(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared()
    killed, other = (start_worker(job) for job in jobs_of(run_id))
    wait_until(lambda: len(played(run_id)) > 5 and all("claims" in job.arguments for job in jobs_of(run_id)))
    killed.kill()
    killed.wait()
    assert other.wait(60) == 0
    assert run_of(run_id).status is RunStatus.RUNNING
    with transaction() as session:
        session.execute(update(Job).where(Job.status == JobStatus.LEASED).values(lease_until=datetime.now(UTC)))
    assert requeue_expired() == 1
    [left] = [job for job in jobs_of(run_id) if job.status is JobStatus.QUEUED]
    assert start_worker(left).wait(60) == 0
    assert run_of(run_id).status is RunStatus.COMPLETED
    assert played(run_id) == WHOLE


@pytest.mark.slow
def test_a_stop_ends_both_and_the_last_one_lays_the_run_down(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared(group_size=32)
    workers = [start_worker(job) for job in jobs_of(run_id)]
    wait_until(lambda: len(played(run_id)) > 5 and all("claims" in job.arguments for job in jobs_of(run_id)))
    asked = time.monotonic()
    with transaction() as session:
        session.execute(update(Run).where(Run.id == run_id).values(stop_requested_at=datetime.now(UTC)))
    wait_until(lambda: run_of(run_id).status is RunStatus.STOPPED)
    assert time.monotonic() - asked < 4
    assert [worker.wait(30) for worker in workers] == [0, 0]
    assert {status for *_, status in played(run_id)} == {"completed", "cancelled"}
    completed = sum(status == "completed" for *_, status in played(run_id))
    assert run_of(run_id).summary["completed"] == completed


def test_one_worker_alone_plays_all_shares_one_after_the_other(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared(tasks=8)
    for job in jobs_of(run_id):
        execute(job.id)
    assert run_of(run_id).status is RunStatus.COMPLETED
    assert len(played(run_id)) == 16
    assert {job.status for job in jobs_of(run_id)} == {JobStatus.DONE}


def test_claims_never_overlap_and_get_smaller_towards_the_end(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared(tasks=100)
    manifest = read_manifest(package_files(**SLOW)["openenv.yaml"])
    plan = EvaluationPlan(tasks=100, group_size=2, workers=2)
    first, second = (WorkClaim(run_id, plan, manifest, job.id) for job in jobs_of(run_id))
    pieces = []
    while (piece := (first, second, second)[len(pieces) % 3]._claim()) is not None:
        pieces.append(piece)
    assert [task for piece in pieces for task in piece] == list(range(100))
    assert len(pieces[0]) == 12
    assert len(pieces[-1]) == 1
    assert [list(piece) for piece in first._pieces()] == [list(piece) for piece in pieces[::3]]


def test_a_group_that_is_played_in_part_is_known_with_its_whole_size(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared(tasks=3)
    RunRecorder(run_id).store([make_rollout(1, 0)])
    manifest = read_manifest(package_files(**SLOW)["openenv.yaml"])
    share = WorkClaim(run_id, EvaluationPlan(tasks=3, group_size=2), manifest, None)
    found = [(plan.ordinal, plan.members, plan.size) for plan in share._missing_groups(range(3))]
    assert found == [(0, (0, 1), 2), (1, (1,), 2), (2, (0, 1), 2)]


@pytest.mark.slow
def test_an_interrupted_share_is_claimed_where_it_was(plan_shared: Callable[..., uuid.UUID]) -> None:
    run_id = plan_shared()
    job = jobs_of(run_id)[0]
    worker = start_worker(job)
    wait_until(lambda: len(played(run_id)) > 5)
    os.kill(worker.pid, signal.SIGUSR2)
    assert worker.wait(30) == 0
    assert jobs_of(run_id)[0].status is JobStatus.QUEUED
    for each in jobs_of(run_id):
        execute(each.id)
    assert run_of(run_id).status is RunStatus.COMPLETED
    assert played(run_id) == WHOLE
