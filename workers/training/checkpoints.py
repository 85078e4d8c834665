"""Checkpoints of a training run: weights in the artifact store, a row for each, the best one marked."""

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import select, update

from backend.checkpoints.pruning import PrunePlan, prune_by_rule
from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder, put_folder
from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.checkpoints.retention import KeepRule
from backend.domain.training.configuration import Stage
from backend.review.judged_curves import choose_best
from workers.models.load import load_folder, record_of, save_adapter
from workers.training.heldout_evaluation import HeldoutEvaluation


class CheckpointStore:
    """The checkpoints of one run. Saving the same one again, after a resume, changes nothing."""

    def __init__(self, run_id: uuid.UUID, policy_id: uuid.UUID, folder: Path) -> None:
        self.run_id, self.policy_id = run_id, policy_id
        self._folder = folder
        """Scratch space on this machine."""

    def find(self, stage: Stage, step: int | None = None) -> Checkpoint | None:
        """The stage's checkpoint at a step, or its last one."""
        statement = select(Checkpoint).where(Checkpoint.run_id == self.run_id, Checkpoint.stage == stage)
        if step is not None:
            statement = statement.where(Checkpoint.step == step)
        with transaction() as session:
            return session.scalars(statement.order_by(Checkpoint.step.desc()).limit(1)).first()

    def save(self, stage: Stage, step: int, model: Any, tokenizer: Any) -> None:
        """Store the weights and their row, unless they are stored."""
        if self.find(stage, step) is not None:
            return
        key = f"checkpoints/{self.run_id}/{stage}-{step}"
        record = record_of(model)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="saving-") as made:
            save_model(model, tokenizer, Path(made))
            size = put_folder(Path(made), key)
        with transaction() as session:
            session.add(
                Checkpoint(
                    policy_id=self.policy_id,
                    run_id=self.run_id,
                    stage=str(stage),
                    step=step,
                    artifact=key,
                    size_bytes=size,
                    adapter=record.model_dump(mode="json") if record else None,
                )
            )
            session.flush()
            announce(session, run_topic(self.run_id))

    def examined(self, stage: Stage, step: int, examination: HeldoutEvaluation, *, at: int | None) -> None:
        """Keep what a checkpoint reached and mark the run's best one. `at` is its rollouts' training step."""
        with transaction() as session:
            of_run = Checkpoint.run_id == self.run_id
            session.execute(
                update(Checkpoint)
                .where(of_run, Checkpoint.stage == stage, Checkpoint.step == step)
                .values(
                    heldout={**examination.as_json(), "training_step": at},
                    heldout_reward=examination.reward.mean if examination.reward else None,
                )
            )
            choose_best(session, self.run_id)
            announce(session, run_topic(self.run_id))

    def prune(self, rule: KeepRule) -> PrunePlan:
        """Let go the weights that the run's rule does not keep. What a resume needs, it always keeps."""
        with transaction() as session:
            return prune_by_rule(session, self.run_id, rule)

    def best(self) -> Checkpoint | None:
        with transaction() as session:
            return session.scalars(
                select(Checkpoint).where(Checkpoint.run_id == self.run_id, Checkpoint.is_best)
            ).one_or_none()

    def load(self, checkpoint: Checkpoint) -> tuple[Any, Any]:
        """Model and tokenizer. Their folder stays: TRL reads its reference model from it."""
        target = self.folder_of(checkpoint)
        shutil.rmtree(target, ignore_errors=True)
        return load_folder(get_folder(checkpoint.artifact, target))

    def folder_of(self, checkpoint: Checkpoint) -> Path:
        """Where `load` puts the weights on this machine."""
        return self._folder / "weights" / checkpoint.id.hex


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Safetensors, configuration, tokenizer and chat template; of an adapter no weight of its base."""
    if record_of(model) is not None:
        save_adapter(model, tokenizer, folder)
        return
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
