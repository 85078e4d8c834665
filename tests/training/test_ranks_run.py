"""A whole run in two processes on the CPU, with shards on two nodes, through the worker's job: it learns what one
process learns, also when one of the two is killed on the way."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from safetensors.torch import load_file
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RunStatus
from backend.rollouts.tables import Group, Rollout
from backend.settings import PROJECT_ROOT, get_settings
from backend.training.tables import Alarm
from tests.installation import forget_settings
from tests.training.conftest import checkpoints_of, counts_of, points_of, run_of
from workers.tasks.children import ChildFailed
from workers.tasks.registry import JobContext
from workers.tasks.training import run as training_job
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

NewRun = Callable[..., uuid.UUID]
CHOICES: dict[str, Any] = {
    "sft": {"steps": 10, "learning_rate": 5e-3},
    "grpo": {"steps": 3, "tasks_per_step": 4, "replace_uniform": 1, "beta": 0.05},
    "heldout": {"every": 3},
}
SAME = ("sft/loss", "sft/grad_norm", "loss", "grad_norm", "entropy", "divergence", "reward", "groups/replaced")
"""Curves that must not depend on the number of processes."""


def carry_out(run_id: uuid.UUID, attempt: int) -> None:
    training_job(JobContext(job_id=uuid.uuid4(), run_id=run_id, arguments={}, attempt=attempt))


@pytest.fixture
def second_node(installation: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node that joins runs of this one, on the same machine."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    for name, value in {"PROCTOR_NODES": "2", "PROCTOR_NODES_ADDRESS": address, "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    forget_settings()
    environment = {**os.environ, "PROCTOR_NODE_RANK": "1"}  # noqa: TID251
    node = subprocess.Popen([sys.executable, "-m", "workers.training.node"], cwd=PROJECT_ROOT, env=environment)
    yield
    node.terminate()
    node.wait(60)


def leader_of(run_id: uuid.UUID) -> int:
    """Process id of the run's first rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it went meanwhile
            is_of_run = str(run_id).encode() in (folder / "cmdline").read_bytes()
            if is_of_run and b"\0RANK=0\0" in (folder / "environ").read_bytes():
                return int(folder.name)
    raise AssertionError("the first rank is not there")


def kill_leader(run_id: uuid.UUID) -> None:
    """As soon as a state is saved from which the run can resume."""
    deadline = time.monotonic() + 500
    while (Phase.TRAIN, 1) not in counts_of(run_id):
        assert time.monotonic() < deadline, "the first step was not reached"
        time.sleep(0.02)
    os.kill(leader_of(run_id), signal.SIGKILL)


def episodes_of(run_id: uuid.UUID) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The rollouts and their rewards, by position."""
    statement = (
        select(Rollout, Group.ordinal)
        .join(Group, Group.id == Rollout.group_id)
        .where(Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN)
    )
    with transaction() as session:
        return {
            (row.training_step, ordinal, row.member): ([step["reply"] for step in row.steps], row.reward)
            for row, ordinal in session.execute(statement)
        }


@pytest.mark.usefixtures("second_node")
def test_two_nodes_learn_what_one_process_learns_also_when_one_is_killed(new_run: NewRun) -> None:
    divided = {"processes": 2, "nodes": 2, "sharding": "fsdp2"}
    alone, together = new_run(**CHOICES), new_run(**CHOICES, hardware=divided)
    assert train(alone).status is RunStatus.COMPLETED
    killing = Thread(target=kill_leader, args=(together,))
    killing.start()
    with pytest.raises(ChildFailed, match="SIGKILL"):
        carry_out(together, 1)
    killing.join()
    assert run_of(together).status is RunStatus.RUNNING
    carry_out(together, 2)
    assert run_of(together).status is RunStatus.COMPLETED, run_of(together).reason
    with transaction() as session:
        assert "process_killed" in session.scalars(select(Alarm.name).where(Alarm.run_id == together)).all()
    assert counts_of(together) == counts_of(alone)
    assert episodes_of(together) == episodes_of(alone)
    one, two = points_of(alone), points_of(together)
    for name in SAME:
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
    assert one["grad_norm"][1]
    for key, row in checkpoints_of(alone).items():
        theirs = load_weights(checkpoints_of(together)[key].artifact)
        for name, weight in load_weights(row.artifact).items():
            assert theirs[name].numpy() == pytest.approx(weight.numpy(), abs=1e-3), (key, name)


def load_weights(artifact: str) -> dict[str, Any]:
    return load_file(get_settings().data / "artifacts" / artifact / "model.safetensors")
