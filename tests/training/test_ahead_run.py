"""A run that samples ahead in a second process is stored and resumed like any other, whichever process ends."""

import os
import signal
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunStatus
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.supervisor.children import Process
from tests.training.conftest import (
    checkpoints_of,
    counts_of,
    kill,
    make_run,
    points_of,
    run_of,
    start_child,
    take_up_again,
    wait_for_step,
    weights_of,
)
from workers.training.ahead import POLICY_VERSION
from workers.training.grpo import GrpoStage
from workers.training.run import train
from workers.training.sampler import SamplingFailed, SamplingProcess

pytestmark = pytest.mark.slow

CHOICES: dict[str, Any] = {"grpo": {"steps": 6, "staleness": 1}, "heldout": {"every": 6, "tasks": 9}}


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    pass


@pytest.fixture(scope="module")
def whole(installation: None) -> uuid.UUID:
    run_id = make_run(**CHOICES)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return run_id


def versions_of(run_id: uuid.UUID) -> set[tuple[int | None, float]]:
    of_run = Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN
    with transaction() as session:
        rows = session.execute(select(Rollout.training_step, Rollout.metrics).where(*of_run))
        return {(step, metrics[POLICY_VERSION]) for step, metrics in rows}


def test_rollouts_have_the_version_of_their_policy_and_steps_their_curves(whole: uuid.UUID) -> None:
    assert versions_of(whole) == {(1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 4)}
    curves = points_of(whole)
    assert curves["staleness"] == {1: 0, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}
    assert all(0 <= (share or 0) <= 1 for share in curves["ahead/overlap"].values())
    assert all((speed or 0) > 0 for speed in curves["ahead/tokens_per_second"].values())


def test_the_same_run_survives_a_killed_worker_a_killed_sampler_and_a_pause(
    whole: uuid.UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = make_run(**CHOICES)
    child = start_child(run_id, has_children=True)
    wait_for_step(run_id, 1)
    kill(child)

    take_up_again(run_id)
    watch(monkeypatch, lambda step, process: step == 3 and os.kill(process.pid, signal.SIGKILL))
    with pytest.raises(SamplingFailed, match=r"was killed \(SIGKILL\) at the episodes of step [45]"):
        train(run_id)

    take_up_again(run_id)
    processes = watch(monkeypatch, lambda step, _: step == 5 and pause(run_id))
    assert train(run_id).status is RunStatus.PAUSED
    assert [process.poll() is None for process in processes] == [False]
    assert max(step or 0 for step, _ in versions_of(run_id)) == 5

    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert counts_of(run_id) == counts_of(whole)
    assert versions_of(run_id) == versions_of(whole)
    assert weights_of(checkpoints_of(run_id)["grpo", 6]) == weights_of(checkpoints_of(whole)["grpo", 6])


def pause(run_id: uuid.UUID) -> None:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        run.stop_requested_at, run.summary = datetime.now(UTC), {**run.summary, "pause_requested": True}


def watch(monkeypatch: pytest.MonkeyPatch, on_step: Callable[[int, Process], object]) -> list[Process]:
    """Return the list of sampling processes, to be filled. `on_step` runs before a step of GRPO is stored."""
    processes: list[Process] = []
    monkeypatch.undo()
    enter, after_step = SamplingProcess.__enter__, GrpoStage._on_step

    def remember(self: SamplingProcess) -> SamplingProcess:
        processes.append(enter(self).process)
        return self

    def call(self: GrpoStage, step: Any) -> bool:
        on_step(step.step, processes[-1])
        return after_step(self, step)

    monkeypatch.setattr(SamplingProcess, "__enter__", remember)
    monkeypatch.setattr(GrpoStage, "_on_step", call)
    return processes
