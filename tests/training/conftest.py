"""Training commits for real: a database of its own on the tests' server, a real env host, real child processes."""

import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import content_hash
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, PolicyKind, RunKind, RunStatus
from backend.environments.scaffold import with_generated
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.tables import Rollout
from backend.runs.tables import MetricPoint, Run
from backend.settings import PROJECT_ROOT, get_settings
from backend.supervisor.children import Process
from tests.envhost_fixture import HostProcess
from tests.factories import make_environment, make_package_version, make_policy
from tests.installation import committing_to
from workers.tasks import children
from workers.training.run import train

SMALL: dict[str, Any] = {
    "model": {"context": 192},
    "sft": {"episodes": 48, "steps": 12, "batch": 16, "warmup_steps": 2},
    "gate": {"minimum_format": 0, "minimum_success": 0},
    "grpo": {"steps": 4, "tasks_per_step": 3, "group_size": 4},
    "heldout": {"every": 2, "tasks": 9},
    "checkpoints": {"every": 1},
    "seed": 4,
}
"""A whole training run in some seconds."""


REPLY_TOKENS = {"tictactoe": 6, "tictactoe_duel": 6, "arithmetic_ladder": 12}
"""Enough for a reply. An untrained policy writes until it is cut; this keeps that short."""


def at_home(database: str, host: HostProcess, data: Path) -> AbstractContextManager[None]:
    """This process and its children use this database, this env host and this data folder."""
    return committing_to(database, PROCTOR_ENVHOST_URL=host.address, PROCTOR_DATA=str(data))


@pytest.fixture
def installation(second_database_url: str, host_process: HostProcess, tmp_path: Path) -> Iterator[None]:
    with at_home(second_database_url, host_process, tmp_path):
        yield


@pytest.fixture(scope="module")
def shared_installation(
    second_database_url: str, host_process: HostProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """One for all tests of a module, which share its runs. Such a module has `installation` mean this one."""
    with at_home(second_database_url, host_process, tmp_path_factory.mktemp("data")):
        yield


def built_in(name: str) -> dict[str, str]:
    """The files of an environment of the library, with replies that are cut soon where these are known."""
    folder = PROJECT_ROOT / "workers" / "library" / name
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {str(path.relative_to(folder)): path.read_text() for path in paths}
    if limit := REPLY_TOKENS.get(name):
        manifest = re.sub(r"max_tokens_per_turn: \d+", f"max_tokens_per_turn: {limit}", files["openenv.yaml"])
        files["openenv.yaml"] = manifest
    return with_generated(files)


@pytest.fixture
def new_run(installation: None) -> Callable[..., uuid.UUID]:
    return make_run


def make_run(files: dict[str, str] | None = None, **choices: Any) -> uuid.UUID:
    """A committed training run that a worker has claimed, on tic-tac-toe unless files are given."""
    files = files or built_in("tictactoe")
    manifest = read_manifest(files["openenv.yaml"])
    merged = {
        name: ({**SMALL.get(name, {}), **value} if isinstance(value, dict) else value)
        for name, value in choices.items()
    }
    configuration = TrainingConfiguration.model_validate({**SMALL, **merged})
    with transaction() as session:
        version = stored_version(session, files)
        run = Run(
            kind=RunKind.TRAINING,
            name="training",
            status=RunStatus.RUNNING,
            version_id=version.id,
            policy_id=make_policy(session, kind=PolicyKind.LOCAL).id,
            checkpoint_id=configuration.model.checkpoint,
            configuration=configuration.resolved(),
            seed=configuration.seed,
            columns=manifest.column_names,
            weights=[column.weight for column in manifest.columns],
            attempt=1,
        )
        session.add(run)
        session.flush()
        return run.id


def stored_version(session: Session, files: dict[str, str], name: str = "") -> EnvironmentVersion:
    """The first version of a separate environment."""
    digest = content_hash(files)
    found = session.scalars(select(EnvironmentVersion).where(EnvironmentVersion.content_hash == digest)).first()
    if found is not None:
        return found
    return make_package_version(session, files, make_environment(session, name or f"environment_{digest[:8]}"))


def start_child(run_id: uuid.UUID, *, has_children: bool = False) -> Process:
    """The training process, as the worker's job starts it."""
    log = get_settings().data / "child.log"
    return children.start_child("workers.training.run", [str(run_id)], log, has_children=has_children)


def wait_for_step(run_id: uuid.UUID, step: int) -> None:
    deadline = time.monotonic() + 300
    while (Phase.TRAIN, step) not in counts_of(run_id):
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.05)


def kill(child: Process) -> None:
    assert child.poll() is None, "it ended by itself"
    child.send_signal(signal.SIGKILL)
    assert child.wait(60) == -signal.SIGKILL


def kill_and_resume(run_id: uuid.UUID, step: int) -> None:
    """Train it to its end: one process is killed once this step is stored, and this one continues."""
    child = start_child(run_id)
    wait_for_step(run_id, step)
    kill_and_go_on(run_id, child)


def kill_and_go_on(run_id: uuid.UUID, child: Process) -> None:
    kill(child)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason


def take_up_again(run_id: uuid.UUID) -> None:
    """The changes that a resume and a worker make to the row."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        run.status, run.stop_requested_at, run.ended_at = RunStatus.RUNNING, None, None
        run.attempt += 1


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def checkpoints_of(run_id: uuid.UUID) -> dict[tuple[str, int], Checkpoint]:
    with transaction() as session:
        rows = session.scalars(select(Checkpoint).where(Checkpoint.run_id == run_id).order_by(Checkpoint.created_at))
        return {(row.stage, row.step): row for row in rows}


def counts_of(run_id: uuid.UUID) -> dict[tuple[Phase, int | None], int]:
    """Stored rollouts by phase and training step."""
    statement = (
        select(Rollout.phase, Rollout.training_step, func.count())
        .where(Rollout.run_id == run_id)
        .group_by(Rollout.phase, Rollout.training_step)
    )
    with transaction() as session:
        return {(phase, step): count for phase, step, count in session.execute(statement)}


def points_of(run_id: uuid.UUID) -> dict[str, dict[int, float | None]]:
    """Curves by name; a later attempt's points win."""
    curves: dict[str, dict[int, float | None]] = {}
    with transaction() as session:
        for point in session.scalars(
            select(MetricPoint).where(MetricPoint.run_id == run_id).order_by(MetricPoint.attempt)
        ):
            curves.setdefault(point.name, {})[point.step] = point.value
    return curves


def weights_of(checkpoint: Checkpoint) -> bytes:
    """The stored weight file, byte by byte."""
    return (get_settings().data / "artifacts" / checkpoint.artifact / "model.safetensors").read_bytes()
