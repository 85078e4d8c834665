"""What the stages of a training run share: the run's data, the arena, the recorder, the checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.domain.rollouts import TaskSpec
from backend.domain.training import Stage, TrainingConfiguration
from backend.domain.vocabulary import Phase
from workers.jobs.recording import RunRecorder
from workers.models.policy import LocalPolicy
from workers.rollouts.engine import GroupPlan
from workers.training.arena import Arena
from workers.training.assignment import Assignment
from workers.training.checkpoints import CheckpointStore
from workers.training.examination import Examination, summarise
from workers.training.tasks import heldout_tasks


class Stopped(Exception):
    """A person asked the run to stop, and its state is saved."""


@dataclass(slots=True)
class Workbench:
    """One attempt at a training run."""

    assignment: Assignment
    arena: Arena
    recorder: RunRecorder
    store: CheckpointStore
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> TrainingConfiguration:
        return self.assignment.configuration

    def folder_of(self, stage: Stage) -> Path:
        """Where the stage's trainer keeps its own states."""
        return self.assignment.folder / stage

    def examine(self, stage: Stage, step: int, model: Any, tokenizer: Any, *, at: int | None) -> Examination:
        """Hold the examination, keep its figures with the checkpoint, and draw its points at the training step `at`."""
        choice = self.configuration.heldout
        tasks = heldout_tasks(self.assignment.manifest, choice.tasks)
        policy = LocalPolicy(model, tokenizer, temperature=choice.temperature, lockstep=True)
        self.recorder.progress(phase="held-out examination", done=0, total=len(tasks))
        try:
            rollouts = self.arena.play_in_lockstep(
                single_groups(tasks),
                policy,
                phase=Phase.HELDOUT,
                seed=self.configuration.seed,
                training_step=at,
                recorder=self.recorder,
            )
        finally:
            self.arena.close_policy(policy)
        examination = summarise(rollouts, [column.name for column in self.assignment.manifest.columns])
        self.store.examined(stage, step, examination, at=at)
        if at is not None:
            self.recorder.metrics(at, examination.metrics())
        reward = f"{examination.reward.mean:.3f}" if examination.reward else "none"
        self.recorder.log(f"held-out examination of {stage} {step}: reward {reward}, format {examination.format:.0%}")
        self.summary[f"heldout_{stage}"] = {"step": step, **examination.as_json()}
        return examination


def single_groups(tasks: Sequence[TaskSpec]) -> list[GroupPlan]:
    """One episode a task."""
    return [GroupPlan(task, ordinal, (0,)) for ordinal, task in enumerate(tasks)]
