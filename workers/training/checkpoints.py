"""Checkpoints of a training run in the artifact store, and the trainer's own states from which it resumes."""

import errno
import re
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_jsonable_python
from sqlalchemy import select, update
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerControl, TrainerState

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder, put_folder, sync_folder
from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.training.configuration import Stage
from backend.domain.training.grpo import GrpoChoice
from backend.review.judged_curves import choose_best
from backend.sweeps.waking import wake_sweep_of
from workers.models.load import ADAPTER, RECORD_FILE, load_folder, record_of
from workers.training.assignment import BranchPoint
from workers.training.heldout_evaluation import HeldoutEvaluation
from workers.training.sharding import gathered_state

COMPLETE = "complete"  # file in a trainer state that was written completely
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_PHRASES = (
    *("no space left on device", "disk quota exceeded", "file too large"),
    *("inline_container", "pytorchstreamwriter"),  # torch's writer fails without the reason
)


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """The checkpoints of one run. Saving the same one again after a resume changes nothing."""

    run_id: uuid.UUID
    policy_id: uuid.UUID
    folder: Path

    def find(self, stage: Stage, step: int | None = None) -> Checkpoint | None:
        """Return the stage's checkpoint at a step. Default: its last one."""
        statement = select(Checkpoint).where(Checkpoint.run_id == self.run_id, Checkpoint.stage == stage)
        if step is not None:
            statement = statement.where(Checkpoint.step == step)
        with transaction() as session:
            return session.scalars(statement.order_by(Checkpoint.step.desc()).limit(1)).first()

    def save(self, stage: Stage, step: int, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Checkpoint:
        if (stored := self.find(stage, step)) is not None:
            return stored
        key = f"checkpoints/{self.run_id}/{stage}-{step}"
        record = record_of(model)
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="saving-") as folder:
            save_model(model, tokenizer, Path(folder))
            size = put_folder(Path(folder), key)
        with transaction() as session:
            checkpoint = Checkpoint(
                policy_id=self.policy_id,
                run_id=self.run_id,
                stage=str(stage),
                step=step,
                artifact=key,
                size_bytes=size,
                adapter=record.model_dump(mode="json") if record else None,
            )
            session.add(checkpoint)
            session.flush()
            session.refresh(checkpoint)
            announce(session, topic_of("run", self.run_id))
            return checkpoint

    def set_heldout(self, stage: Stage, step: int, evaluation: HeldoutEvaluation, *, at: int | None) -> None:
        """Keep a held-out result with its checkpoint and mark the run's best one. `at`: its rollouts' training step."""
        with transaction() as session:
            session.execute(
                update(Checkpoint)
                .where(Checkpoint.run_id == self.run_id, Checkpoint.stage == stage, Checkpoint.step == step)
                .values(
                    heldout={**to_jsonable_python(evaluation), "training_step": at},
                    heldout_reward=evaluation.reward.mean if evaluation.reward else None,
                )
            )
            choose_best(session, self.run_id)
            wake_sweep_of(session, self.run_id)
            announce(session, topic_of("run", self.run_id))

    def load(self, checkpoint: Checkpoint, place: str = "weights") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Load model and tokenizer. Their folder stays: TRL reads its reference model from it."""
        target = self.folder_of(checkpoint, place)
        shutil.rmtree(target, ignore_errors=True)
        return load_folder(get_folder(checkpoint.artifact, target))

    def folder_of(self, checkpoint: Checkpoint, place: str = "weights") -> Path:
        return self.folder / place / checkpoint.id.hex


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write safetensors, configuration, tokenizer and chat template. An adapter comes with the record of its base."""
    if (record := record_of(model)) is not None:
        model.save_pretrained(
            str(folder), selected_adapters=[ADAPTER], save_embedding_layers=False, state_dict=gathered_state(model)
        )
        (folder / "README.md").unlink(missing_ok=True)  # peft's template; an export writes its own model card
        (folder / RECORD_FILE).write_text(record.model_dump_json(indent=2))
    else:
        model.save_pretrained(folder, safe_serialization=True, state_dict=gathered_state(model))
    tokenizer.save_pretrained(folder)


def replace_file(path: Path, text: str) -> None:
    """Write a file in a new folder or over an old version. Readers never see it half-written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def mark_complete(state: Path) -> None:
    """Sync all files of a trainer state and mark it complete. States without the mark are not used."""
    sync_folder(state)
    (state / COMPLETE).touch()
    sync_folder(state)


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether a file could not be written because of the disk, a quota or a limit of its size."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(phrase in str(error).lower() for phrase in FULL_PHRASES):  # safetensors has no error number
            return True
        error = error.__cause__ or error.__context__
    return False


def discard_incomplete(folder: Path) -> None:
    """Delete trainer states that were not written completely. They only take space."""
    for state in folder.glob("**/checkpoint-*"):
        if not (state / COMPLETE).exists():
            shutil.rmtree(state, ignore_errors=True)


def newest_complete(folder: Path) -> Path | None:
    states = [
        (int(match[1]), path)
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and (path / COMPLETE).exists()
    ]
    return max(states)[1] if states else None


def reached_step(folder: Path, updates: int = 1) -> int:
    """Return the step after which the newest complete state was saved, or 0. `updates`: steps of TRL in one of ours."""
    state = newest_complete(folder)
    return int(state.name.removeprefix("checkpoint-")) // updates if state else 0


def take_over(
    point: BranchPoint, folder: Path, choice: GrpoChoice, *, save_every: int, is_sharded: bool = False
) -> str | None:
    """Put the trainer state of the branch's step into `folder`, from which the trainer resumes.

    Without the source's complete state, the checkpoint's weights are used and the optimizer starts fresh. `save_every`:
    steps between two states, which the trainer reads from the state. Returns a description of the state, or None if the
    folder already has one.
    """
    optimizer = "optimizer.bin" if is_sharded else "optimizer.pt"
    if newest_complete(folder) is not None:
        return None
    if point.step == 0:
        return "the weights before GRPO"
    states, target = point.source_folder / Stage.GRPO, folder / f"checkpoint-{point.step * choice.updates}"
    shutil.rmtree(target, ignore_errors=True)
    (folder / "plans").mkdir(parents=True, exist_ok=True)
    plan = states / "plans" / f"{point.step}.json"
    if plan.exists():
        shutil.copy(plan, folder / "plans" / plan.name)
    is_kept = (states / target.name / COMPLETE).exists()
    if is_kept and (states / target.name / optimizer).exists():
        # tasks and weights of batches sampled ahead belong to the source, which may play another version
        shutil.copytree(states / target.name, target, ignore=shutil.ignore_patterns("ahead*"))
        mark_complete(target)
        return "the trainer's whole state: weights, optimizer and random numbers"
    with transaction() as session:
        artifact = session.get_one(Checkpoint, point.checkpoint_id).artifact
    get_folder(artifact, target)
    state = TrainerState(
        epoch=point.step / choice.steps,
        global_step=point.step * choice.updates,
        max_steps=choice.steps * choice.updates,
        logging_steps=1,
        save_steps=save_every * choice.updates,
        train_batch_size=choice.episodes_per_step // choice.micro_batches,
        stateful_callbacks=[TrainerControl()],
    )
    state.save_to_json(str(target / "trainer_state.json"))
    mark_complete(target)
    reason = "is stored for another hardware.sharding" if is_kept else "of that step was not kept"
    return f"the checkpoint's weights; the optimizer starts fresh, because its state {reason}"
