"""Browsers of every role, and a training run with checkpoints whose weights are on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.domain.training.configuration import CheckpointChoice, TrainingConfiguration
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.runs.tables import Run
from tests.factories import make_checkpoint, make_policy, make_run
from tests.installation import forget_settings
from tests.web_fixtures import *  # noqa: F403

TrainedRun = Callable[..., tuple[Run, dict[str, Checkpoint]]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An artifact store of the test's own."""
    monkeypatch.setenv("PROCTOR_DATA", str(tmp_path))
    forget_settings()
    yield tmp_path / "artifacts"
    monkeypatch.undo()
    forget_settings()


@pytest.fixture
def trained(session: Session, store: Path, tmp_path: Path) -> TrainedRun:
    """`trained(steps=(20, 40), rewards=(0.5, 0.6))`: untrained, warmed up, then GRPO; 8 bytes of weights each."""

    def make(
        *, steps: tuple[int, ...] = (20, 40, 60), rewards: tuple[float, ...] = (), keep: Any = None, **fields: Any
    ) -> tuple[Run, dict[str, Checkpoint]]:
        choice = CheckpointChoice(**(keep or {"keep_last": 1}))
        configuration = TrainingConfiguration(checkpoints=choice).resolved()
        policy = make_policy(session, kind=PolicyKind.LOCAL)
        values = {"kind": RunKind.TRAINING, "status": RunStatus.COMPLETED, "configuration": configuration, **fields}
        run = make_run(session, policy=policy, **values)
        saved = {
            "untrained": _checkpoint(session, run, "untrained", 0, None),
            "sft": _checkpoint(session, run, "sft", 100, 0.1),
        }
        for index, step in enumerate(steps):
            reward = rewards[index] if index < len(rewards) else None
            saved[f"grpo {step}"] = _checkpoint(session, run, "grpo", step, reward)
        examined = [each for each in saved.values() if each.heldout_reward is not None]
        max(examined, key=lambda each: each.heldout_reward or 0).is_best = True
        session.flush()
        for each in saved.values():
            source = tmp_path / "made"
            source.mkdir(exist_ok=True)
            (source / "model.safetensors").write_bytes(b"8 bytes!")
            artifacts.put_folder(source, each.artifact)
        return run, saved

    return make


def _checkpoint(session: Session, run: Run, stage: str, step: int, reward: float | None) -> Checkpoint:
    heldout = {}
    if reward is not None:
        heldout = {"reward": {"mean": reward, "low": reward - 0.04, "high": reward + 0.04, "count": 100}}
    assert run.policy is not None
    fields = {"stage": stage, "step": step, "heldout_reward": reward, "heldout": heldout, "size_bytes": 8}
    return make_checkpoint(session, run.policy, run, artifact=f"checkpoints/{run.id}/{stage}-{step}", **fields)


def is_there(store: Path, checkpoint: Checkpoint) -> bool:
    return (store / checkpoint.artifact / "model.safetensors").exists()
