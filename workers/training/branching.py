"""How a branch takes over: the trainer's state of the step where it exists, else the checkpoint's weights alone."""

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.session import transaction
from backend.domain.training.configuration import Stage
from backend.domain.training.grpo import GrpoChoice
from workers.training.resume import is_complete, mark_complete, newest_complete

PLANS = "plans"
"""Where the planner keeps what it remembers, beside the trainer's states."""


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Where a run goes on from another one."""

    source_run_id: uuid.UUID
    step: int
    """Of GRPO."""
    checkpoint_id: uuid.UUID
    start_id: uuid.UUID
    """The policy before GRPO: what the divergence is measured from."""
    source_folder: Path
    """Where this machine keeps the source's states, if it played here."""

    @classmethod
    def of(cls, told: dict[str, Any], source_run_id: uuid.UUID, step: int, folder: Path) -> "BranchPoint":
        """From the run's configuration."""
        return cls(source_run_id, step, uuid.UUID(told["checkpoint_id"]), uuid.UUID(told["start_id"]), folder)

    def start(self) -> Checkpoint:
        with transaction() as session:
            return session.get_one(Checkpoint, self.checkpoint_id if self.step == 0 else self.start_id)


def take_over(point: BranchPoint, folder: Path, choice: GrpoChoice, *, save_every: int) -> str | None:
    """Put the state of the branch's step where the trainer goes on from; does nothing when it is there.

    `save_every`: steps between two states, which the trainer reads from the state that it goes on from.

    Returns what was taken over, in words; None where there was nothing to do.
    """
    if newest_complete(folder) is not None:
        return None
    if point.step == 0:
        return "the weights before GRPO"
    name = f"checkpoint-{point.step * choice.updates}"
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    _copy_plan(point, folder)
    kept = point.source_folder / Stage.GRPO / name
    if is_complete(kept):
        shutil.copytree(kept, target)
        mark_complete(target)
        return "the trainer's whole state: weights, optimiser and random numbers"
    with transaction() as session:
        artifact = session.get_one(Checkpoint, point.checkpoint_id).artifact
    get_folder(artifact, target)
    _write_state(target, point.step, choice, save_every)
    mark_complete(target)
    return "the checkpoint's weights; the optimiser begins anew, because its state of that step is not kept any more"


def _copy_plan(point: BranchPoint, folder: Path) -> None:
    plan = point.source_folder / Stage.GRPO / PLANS / f"{point.step}.json"
    if plan.exists():
        (folder / PLANS).mkdir(parents=True, exist_ok=True)
        shutil.copy(plan, folder / PLANS / plan.name)


def _write_state(target: Path, step: int, choice: GrpoChoice, save_every: int) -> None:
    """The trainer then counts on from this step. What it logs and saves when is part of its state."""
    state = TrainerState(
        epoch=step / choice.steps,
        global_step=step * choice.updates,
        max_steps=choice.steps * choice.updates,
        logging_steps=1,
        save_steps=save_every * choice.updates,
        train_batch_size=choice.episodes_per_step // choice.micro_batches,
        stateful_callbacks=[TrainerControl()],
    )
    state.save_to_json(str(target / "trainer_state.json"))
