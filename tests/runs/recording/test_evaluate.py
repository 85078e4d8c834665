"""An evaluation from its row to its summary: a real env host, a real Postgres, scripted policies."""

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update

from backend.core.session import transaction
from backend.domain.vocabulary import PolicyKind, RolloutStatus, RunStatus
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run, RunLogLine
from backend.settings import PROJECT_ROOT
from tests.envhost_fixture import HostProcess, package_files
from tests.factories import make_package_version, make_policy, make_queued_evaluation
from tests.runs.recording.conftest import make_failed, make_rollout, run_of
from workers.policies.scripted import ScriptedPolicy
from workers.storage.policies import PolicyIsGone
from workers.storage.recorder import RunRecorder
from workers.tasks.evaluations import evaluate, run
from workers.tasks.registry import JobContext

GOLD = ScriptedPolicy("constant", "3")
"""The counter is done at 3."""


@pytest.fixture
def plan_run(found_host: HostProcess) -> Callable[..., uuid.UUID]:
    """A queued evaluation of the counter package with extra statements in its reset and step."""

    def plan_run(*, package: dict[str, Any] | None = None, configuration: dict[str, Any] | None = None, **plan: Any):  # type: ignore[no-untyped-def]
        with transaction() as session:
            version = make_package_version(session, package_files(**(package or {})))
            policy = make_policy(session, configuration=configuration or {"script": "constant", "constant": "3"})
            return make_queued_evaluation(session, version, policy, **{"tasks": 12, "concurrency": 8, **plan}).id

    return plan_run


def _rollouts(run_id: uuid.UUID) -> list[tuple[int, int, RolloutStatus]]:
    with transaction() as session:
        query = (
            select(Group.ordinal, Rollout.member, Rollout.status)
            .join(Group, Group.id == Rollout.group_id)
            .where(Rollout.run_id == run_id)
            .order_by(Group.ordinal, Rollout.member)
        )
        return [tuple(row) for row in session.execute(query)]  # type: ignore[misc]


def test_it_plays_stores_and_sums_up(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(tasks=6, group_size=2)
    run(JobContext(uuid.uuid4(), run_id, {}, 1))
    row = run_of(run_id)
    assert (row.status, row.reason, row.attempt) == (RunStatus.COMPLETED, None, 1)
    assert row.ended_at is not None
    assert _rollouts(run_id) == [(task, member, "completed") for task in range(6) for member in range(2)]
    summary = row.summary
    assert summary["reward"] == {
        "mean": 3.25,
        "low": 3.25,
        "high": 3.25,
        "count": 6,
        "levels": summary["reward"]["levels"],
    }
    assert summary["columns"]["gain"]["mean"] == 3.0
    assert (summary["completed"], summary["failed"], summary["stop_reasons"]) == (12, 0, {"done": 12})
    assert summary["groups"] == {"count": 6, "mixed": 0.0, "all_good": 1.0, "all_bad": 0.0}
    assert summary["rollouts_per_second"] > 0
    assert row.progress["done"] == 12


def test_it_continues_where_the_rows_stand(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(tasks=4, split="train")
    kept = make_rollout(0, columns={"gain": 1.0, "tidy": 1.0}, reward=1.5)
    RunRecorder(run_id).store([kept, make_failed(1)])
    assert evaluate(run_id, GOLD) is RunStatus.COMPLETED
    assert _rollouts(run_id) == [(task, 0, "completed") for task in range(4)]
    with transaction() as session:
        rewards = session.scalars(select(Rollout.reward).where(Rollout.run_id == run_id).order_by(Rollout.seq)).all()
    assert rewards == [1.5, 3.25, 3.25, 3.25]


def test_what_is_over_is_left_alone(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run()
    evaluate(run_id, GOLD)
    evaluate(run_id, GOLD)
    assert run_of(run_id).attempt == 1
    assert len(_rollouts(run_id)) == 12


@pytest.mark.slow
def test_a_stop_is_obeyed_and_the_rest_played_later(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(package={"name": "slow", "in_step": "import time; time.sleep(0.2)"}, tasks=60, concurrency=4)
    player = threading.Thread(target=evaluate, args=(run_id, GOLD))
    player.start()
    while not _rollouts(run_id):
        assert player.is_alive()
    with transaction() as session:
        session.execute(update(Run).where(Run.id == run_id).values(stop_requested_at=datetime.now(UTC)))
    player.join(10)
    row = run_of(run_id)
    statuses = Counter(status for *_, status in _rollouts(run_id))
    played = statuses["completed"]
    assert (row.status, row.reason) == (RunStatus.STOPPED, "Stopped on request.")
    assert 0 < played < 60
    assert set(statuses) == {"completed", "cancelled"}
    assert 0 < statuses["cancelled"] <= 4
    assert row.summary["completed"] == row.summary["reward"]["count"] == played
    with transaction() as session:
        again = {
            "stop_requested_at": None,
            "status": RunStatus.QUEUED,
            "configuration": {**row.configuration, "tasks": 20},
        }
        session.execute(update(Run).where(Run.id == run_id).values(**again))
    evaluate(run_id, GOLD)
    assert run_of(run_id).status is RunStatus.COMPLETED
    assert {status for *_, status in _rollouts(run_id)[:20]} == {"completed"}
    assert len(_rollouts(run_id)) == max(20, sum(statuses.values()))


def test_a_stop_is_obeyed_while_the_environment_is_prepared(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(package={"name": "sleepy", "before_app": "import time; time.sleep(6)"})
    player = threading.Thread(target=evaluate, args=(run_id, GOLD))
    player.start()
    with transaction() as session:
        session.execute(update(Run).where(Run.id == run_id).values(stop_requested_at=datetime.now(UTC)))
    player.join(5)
    assert not player.is_alive()
    assert run_of(run_id).status is RunStatus.STOPPED


@pytest.mark.slow
def test_a_killed_worker_loses_and_doubles_nothing(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(package={"name": "slow", "in_step": "import time; time.sleep(0.05)"}, tasks=120, concurrency=4)
    program = (
        "import sys, uuid; from tests.runs.recording.test_evaluate import *; evaluate(uuid.UUID(sys.argv[1]), GOLD)"
    )
    worker = subprocess.Popen([sys.executable, "-c", program, str(run_id)], cwd=PROJECT_ROOT)
    while not _rollouts(run_id):
        assert worker.poll() is None
    worker.kill()
    worker.wait()
    before = _rollouts(run_id)
    assert 0 < len(before) < 120
    assert run_of(run_id).status is RunStatus.RUNNING
    assert evaluate(run_id, GOLD) is RunStatus.COMPLETED
    assert _rollouts(run_id) == [(task, 0, "completed") for task in range(120)]
    assert run_of(run_id).next_seq == 121
    assert run_of(run_id).attempt == 2


@pytest.mark.slow
def test_an_environment_that_always_fails_pauses_the_run(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(package={"name": "broken", "in_reset": "raise RuntimeError('no board')"}, tasks=200)
    assert evaluate(run_id, GOLD) is RunStatus.PAUSED
    row = run_of(run_id)
    assert "of the last" in str(row.reason)
    assert "no board" in str(row.reason)
    assert {status for *_, status in _rollouts(run_id)} <= {"failed", "cancelled"}
    assert row.summary["completed"] == 0
    assert row.summary["reward"] is None


@pytest.mark.slow
def test_a_few_rollouts_that_all_fail_fail_the_run(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(package={"name": "broken", "in_reset": "raise RuntimeError('no board')"}, tasks=2)
    assert evaluate(run_id, GOLD) is RunStatus.FAILED
    reason = "Every rollout failed. Most common error: environment: reset: no board (EXECUTION_ERROR)"
    assert run_of(run_id).reason == reason
    with transaction() as session:
        lines = session.scalars(select(RunLogLine.message).where(RunLogLine.level == "warning")).all()
    assert len(lines) == 1
    assert "failed after 3 attempts. environment: reset: no board" in lines[0]


@pytest.mark.slow
def test_some_failures_are_counted_and_never_averaged_in(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(
        package={"name": "moody", "in_reset": "if arguments['index'] in (3, 4): raise RuntimeError('no board')"}
    )
    assert evaluate(run_id, GOLD) is RunStatus.COMPLETED
    summary = run_of(run_id).summary
    assert (summary["completed"], summary["failed"], summary["errors"]) == (10, 2, {"environment": 2})
    assert summary["reward"]["mean"] == 3.25
    assert summary["reward"]["count"] == 10


@pytest.mark.slow
def test_what_failed_is_tried_once_more_at_the_end(plan_run: Callable[..., uuid.UUID]) -> None:
    mark = "import time, __main__; began = getattr(__main__, 'began', None) or setattr(__main__, 'began', time.time())"
    fails = (
        f"{mark}\nif arguments['index'] in (3, 4) and time.time() - __main__.began < 1.4: raise RuntimeError('away')"
    )
    run_id = plan_run(package={"name": "away", "in_reset": fails})
    assert evaluate(run_id, GOLD) is RunStatus.COMPLETED
    assert run_of(run_id).summary["completed"] == 12
    with transaction() as session:
        attempts = session.scalars(select(Rollout.attempts).where(Rollout.run_id == run_id)).all()
        lines = session.scalars(select(RunLogLine.message).where(RunLogLine.run_id == run_id)).all()
    assert sorted(attempts)[-2:] == [4, 4]
    assert "2 rollouts failed; each is tried once more" in lines


@pytest.mark.slow
def test_many_sessions_stop_within_two_seconds(plan_run: Callable[..., uuid.UUID]) -> None:
    package = {"name": "slow", "in_step": "import time; time.sleep(0.5)", "sessions": 64}
    run_id = plan_run(package=package, tasks=2000, concurrency=64)
    player = threading.Thread(target=evaluate, args=(run_id, GOLD))
    player.start()
    while (run_of(run_id).progress or {}).get("phase") != "playing":
        assert player.is_alive()
    asked = time.monotonic()
    with transaction() as session:
        session.execute(update(Run).where(Run.id == run_id).values(stop_requested_at=datetime.now(UTC)))
    player.join(20)
    assert time.monotonic() - asked < 3.0
    row = run_of(run_id)
    assert row.status is RunStatus.STOPPED
    assert row.progress["done"] == row.summary["completed"]
    cancelled = [status for *_, status in _rollouts(run_id) if status == "cancelled"]
    assert 0 < len(cancelled) <= 64


def test_progress_shows_how_many_episodes_may_be_in_flight(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(concurrency=5)
    evaluate(run_id, GOLD)
    assert run_of(run_id).progress["concurrency"] == 5


def test_a_package_that_does_not_start_fails_the_run_with_its_words(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(package={"name": "unborn", "before_app": "raise ImportError('no luck')"})
    assert evaluate(run_id, GOLD) is RunStatus.FAILED
    assert "no luck" in str(run_of(run_id).reason)


def test_a_deleted_policy_is_refused(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run()
    with transaction() as session:
        session.execute(update(Policy).values(deleted_at=datetime.now(UTC)))
    with pytest.raises(PolicyIsGone, match="was deleted"):
        run(JobContext(uuid.uuid4(), run_id, {}, 1))


def test_an_endpoint_that_is_down_fails_rollouts_and_pauses(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(tasks=60)
    with transaction() as session:
        configuration = {"base_url": "http://127.0.0.1:9/v1", "model": "none", "attempts": 2}
        session.execute(update(Policy).values(kind=PolicyKind.OPENAI_API, configuration=configuration))
    run(JobContext(uuid.uuid4(), run_id, {}, 1))
    row = run_of(run_id)
    assert row.status is RunStatus.PAUSED
    assert "policy: the endpoint cannot be reached" in str(row.reason)
    assert "(2 tries)" in str(row.reason)


def test_the_tasks_are_those_of_the_plan(plan_run: Callable[..., uuid.UUID]) -> None:
    run_id = plan_run(tasks=2, first_task=5)
    evaluate(run_id, GOLD)
    with transaction() as session:
        query = select(Task.split, Task.index, Task.seed).join(Group, Group.task_id == Task.id)
        found = session.execute(query.where(Group.run_id == run_id).order_by(Group.ordinal)).all()
    assert [tuple(task) for task in found] == [("heldout", 5, 10_000_005), ("heldout", 6, 10_000_006)]
