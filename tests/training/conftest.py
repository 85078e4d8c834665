"""Training commits for real: a database of its own on the tests' server, a real env host, real child processes."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, EnvironmentVersion, MetricPoint, Rollout, Run
from backend.db.session import transaction
from backend.domain.manifest import read_manifest
from backend.domain.packages import content_hash
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, PolicyKind, RunKind, RunStatus
from backend.settings import PROJECT_ROOT, get_settings
from tests.envhost_fixture import HostProcess
from tests.factories import make_environment, make_package_version, make_policy
from tests.installation import forget_settings
from tests.training.forked import Child
from workers.training.run import train

SMALL: dict[str, Any] = {
    "model": {"context": 192},
    "sft": {"episodes": 48, "steps": 12, "batch": 16, "warmup_steps": 2},
    "gate": {"minimum_format": 0},
    "grpo": {"steps": 4, "tasks_per_step": 3, "group_size": 4},
    "heldout": {"every": 2, "tasks": 9},
    "checkpoints": {"every": 1},
    "seed": 4,
}
"""A whole training run in some seconds."""


@pytest.fixture
def installation(found_host: HostProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process and those that it starts use this database, this env host and a data folder of their own."""
    monkeypatch.setenv("PROCTOR_DATA", str(tmp_path))
    forget_settings()


def built_in(name: str) -> dict[str, str]:
    folder = PROJECT_ROOT / "workers" / "library" / name
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.fixture
def new_run(installation: None) -> Callable[..., uuid.UUID]:
    """A committed training run on tic-tac-toe that a worker has taken up."""

    def make(files: dict[str, str] | None = None, **choices: Any) -> uuid.UUID:
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

    return make


def stored_version(session: Session, files: dict[str, str], name: str = "") -> EnvironmentVersion:
    """The first version of an environment of its own."""
    digest = content_hash(files)
    found = session.scalars(select(EnvironmentVersion).where(EnvironmentVersion.content_hash == digest)).first()
    if found is not None:
        return found
    return make_package_version(session, files, make_environment(session, name or f"environment_{digest[:8]}"))


def start_child(run_id: uuid.UUID) -> Child:
    """The training process, as the worker's job starts it."""
    return Child("workers.training.run", str(run_id), log=get_settings().data / "child.log")


def wait_for_step(run_id: uuid.UUID, step: int) -> None:
    deadline = time.monotonic() + 300
    while (Phase.TRAIN, step) not in counts_of(run_id):
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.05)


def kill(child: Child) -> None:
    assert child.poll() is None, "it ended by itself"
    child.kill()
    child.wait()


def kill_and_resume(run_id: uuid.UUID, step: int) -> None:
    """Trains it to its end: a process is killed once this step is stored, and this one goes on."""
    child = start_child(run_id)
    wait_for_step(run_id, step)
    kill_and_go_on(run_id, child)


def kill_and_go_on(run_id: uuid.UUID, child: Child) -> None:
    kill(child)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason


def take_up_again(run_id: uuid.UUID) -> None:
    """What a resume and a worker do to the row."""
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
