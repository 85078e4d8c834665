"""What the stages of a training run share: the run's data, its env pool, the recorder, the checkpoints."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.domain.checkpoints.retention import KeepRule
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.vocabulary import Phase, RunStatus
from workers.models.policy import LocalPolicy
from workers.rollouts.engine import GroupPlan
from workers.storage.recorder import RunRecorder
from workers.training.assignment import Assignment
from workers.training.budget import BudgetTracker
from workers.training.checkpoints import CheckpointStore
from workers.training.env_pool import EnvPool
from workers.training.heldout_evaluation import HeldoutEvaluation, summarise
from workers.training.planning.tasks import heldout_tasks, warm_up_tasks
from workers.training.ranks.ranks import ALONE, Ranks


class Stopped(Exception):
    """A person asked the run to stop, and its state is saved."""


class Ended(Exception):
    """The run ends itself before its last step."""

    def __init__(self, status: RunStatus, reason: str, roll_back: uuid.UUID | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.roll_back = roll_back
        """The alarm after which a branch starts from the last good checkpoint."""


class UsedUp(Exception):
    """The budget is used up before the run came to GRPO. What was reached is saved and examined."""


@dataclass(slots=True)
class TrainingContext:
    """One attempt at a training run."""

    assignment: Assignment
    env_pool: EnvPool
    recorder: RunRecorder
    store: CheckpointStore
    summary: dict[str, Any] = field(default_factory=dict)
    ranks: Ranks = ALONE
    budget_tracker: BudgetTracker = field(init=False)

    def __post_init__(self) -> None:
        self.budget_tracker = BudgetTracker(self.configuration.budget, self.assignment.folder)

    @property
    def configuration(self) -> TrainingConfiguration:
        return self.assignment.configuration

    def folder_of(self, stage: Stage) -> Path:
        """Where the stage's trainer keeps its own states."""
        return self.assignment.folder / stage

    def is_used_up(self) -> bool:
        """Is a limit of the budget reached? Says so in the run's summary."""
        sentence = self.budget_tracker.used_up()
        if used := self.budget_tracker.as_json:
            self.summary["budget"] = {**used, "used_up": sentence}
        return sentence is not None

    def warm_up_plans(self, count: int) -> list[GroupPlan]:
        """So many single episodes on the first training tasks of all environments."""
        return single_groups(warm_up_tasks(self.assignment.envs, count))

    def examine(self, stage: Stage, step: int, model: Any, tokenizer: Any, *, at: int | None) -> HeldoutEvaluation:
        """Hold the examination, keep its figures with the checkpoint, and draw its points at the training step `at`."""
        examination = self._hold(model, tokenizer, at=at, recorder=self.recorder)
        self.store.examined(stage, step, examination, at=at)
        self._prune()
        if at is not None:
            self.recorder.metrics(at, examination.metrics())
        reward = f"{examination.reward.mean:.3f}" if examination.reward else "none"
        self.recorder.log(f"held-out examination of {stage} {step}: reward {reward}, format {examination.format:.0%}")
        self.summary[f"heldout_{stage}"] = {"step": step, **examination.as_json()}
        return examination

    def validate(self, stage: Stage, step: int, model: Any, tokenizer: Any) -> HeldoutEvaluation:
        """The examination that `examine` holds of a stage, without storing its rollouts: which checkpoint goes on?

        The chosen one is examined again, and reaches the same where sampling repeats itself.
        """
        examination = self._hold(model, tokenizer, at=0, recorder=None)
        self.store.examined(stage, step, examination, at=None)
        self.recorder.metrics(step, {f"{stage}/{name}": value for name, value in examination.metrics().items()})
        return examination

    def _hold(self, model: Any, tokenizer: Any, *, at: int | None, recorder: RunRecorder | None) -> HeldoutEvaluation:
        choice = self.configuration.heldout
        tasks = heldout_tasks(self.assignment.envs, choice.tasks)
        policy = LocalPolicy(model, tokenizer, temperature=choice.temperature, lockstep=True)
        self.recorder.progress(phase="held-out examination", done=0, total=len(tasks))
        try:
            rollouts = self.env_pool.play_in_lockstep(
                single_groups(tasks),
                policy,
                phase=Phase.HELDOUT,
                seed=self.configuration.seed,
                training_step=at,
                recorder=recorder,
            )
        finally:
            self.env_pool.close_policy(policy)
        columns = [column.name for column in self.assignment.columns]
        return summarise(rollouts, columns, self.assignment.envs)

    def _prune(self) -> None:
        """Weights that the run's rule lets go."""
        pruned = self.store.prune(KeepRule.of(self.configuration.checkpoints))
        if pruned.to_delete:
            names = ", ".join(f"{each.checkpoint.stage} {each.checkpoint.step}" for each in pruned.to_delete)
            self.recorder.log(f"weights pruned by the rule: {names} ({pruned.freed_bytes / 1e6:.1f} MB freed)")


def single_groups(tasks: Sequence[TaskSpec]) -> list[GroupPlan]:
    """One episode a task."""
    return [GroupPlan(task, ordinal, (0,)) for ordinal, task in enumerate(tasks)]
