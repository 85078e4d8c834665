"""Shared by all stages of a training run: the assignment, env pool, recorder, checkpoints and budget."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic_core import to_jsonable_python
from sqlalchemy import func, select
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from backend.checkpoints.pruning import prune_by_rule
from backend.core.session import transaction
from backend.domain.checkpoints.retention import KeepRule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.budget import BudgetChoice, Spending
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.vocabulary import OF_STEPS, Phase, RunStatus, Split
from backend.rollouts.tables import Rollout as RolloutRow
from workers.models.policy import LocalPolicy
from workers.storage.recorder import RunRecorder
from workers.training.assignment import Assignment
from workers.training.checkpoints import CheckpointStore, replace_file
from workers.training.curriculum import single_plans
from workers.training.env_pool import EnvPool
from workers.training.heartbeats import ACTIVITY
from workers.training.heldout_evaluation import HeldoutEvaluation, summarize
from workers.training.ranks import ALONE, Ranks

SAVED_EVERY_SECONDS = 2.0  # most training time that a killed process fails to count


class TrainingStopped(Exception):
    """Someone stopped the run, and its state is saved."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    status: RunStatus
    reason: str | None = None
    roll_back: uuid.UUID | None = None  # the alarm after which a branch starts from the last good checkpoint


class Ended(Exception):
    """An alarm or the gate ends the run before its last step, with this outcome."""


class UsedUp(Exception):
    """The budget ran out before GRPO. The policy so far is saved and evaluated."""


class BudgetTracker:
    """Time, tokens and rollouts used by all attempts at a run.

    Time counts however an attempt ends. Rollouts and tokens count once per step: steps after the last saved state are
    played again after a resume.
    """

    def __init__(self, choice: BudgetChoice, folder: Path) -> None:
        self.choice = choice
        self._path = folder / "minutes.txt"
        self._minutes_before = float(self._path.read_text()) if self._path.exists() else 0.0
        self._began = self._saved_at = time.monotonic()
        self._tokens = self._rollouts = 0

    def restore(self, run_id: uuid.UUID, last: int) -> None:
        of_run = (RolloutRow.run_id == run_id, RolloutRow.phase.in_(OF_STEPS), RolloutRow.training_step <= last)
        statement = select(func.count(), func.coalesce(func.sum(RolloutRow.tokens_out), 0)).where(*of_run)
        with transaction() as session:
            self._rollouts, self._tokens = session.execute(statement).one()

    def add(self, rollouts: Sequence[Rollout]) -> None:
        self._rollouts += len(rollouts)
        self._tokens += sum(rollout.tokens_out for rollout in rollouts)

    @property
    def spending(self) -> Spending:
        minutes = self._minutes_before + (time.monotonic() - self._began) / 60
        return Spending(minutes, self._tokens, self._rollouts)

    def used_up(self) -> str | None:
        """Return a sentence about the limit that is reached, if any."""
        if time.monotonic() - self._saved_at >= SAVED_EVERY_SECONDS:
            self.save()
        return self.spending.used_up(self.choice)

    def save(self) -> None:
        self._saved_at = time.monotonic()
        if self.choice.minutes is not None:
            replace_file(self._path, repr(self.spending.minutes))


@dataclass(slots=True)
class TrainingContext:
    """One attempt at a training run."""

    assignment: Assignment
    env_pool: EnvPool
    recorder: RunRecorder
    summary: dict[str, object] = field(default_factory=dict)
    ranks: Ranks = ALONE
    configuration: TrainingConfiguration = field(init=False)
    store: CheckpointStore = field(init=False)
    budget_tracker: BudgetTracker = field(init=False)

    def __post_init__(self) -> None:
        assignment = self.assignment
        self.store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
        self.configuration = assignment.configuration
        self.budget_tracker = BudgetTracker(assignment.configuration.budget, assignment.folder)

    def is_used_up(self) -> bool:
        """Return whether a limit of the budget is reached, and record the spending in the run's summary."""
        sentence = self.budget_tracker.used_up()
        if spending := self.budget_tracker.spending.as_json(self.budget_tracker.choice):
            self.summary["budget"] = {**spending, "used_up": sentence}
        return sentence is not None

    def evaluate_heldout(
        self,
        stage: Stage,
        step: int,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        at: int | None,
        is_stored: bool = True,
    ) -> HeldoutEvaluation:
        """Evaluate a checkpoint on the held-out tasks and keep the result with it.

        `at`: training step of its stored rollouts and curves. With `is_stored` False, the evaluation only selects a
        checkpoint, which is evaluated again: no rollouts are stored, and the curves get the stage's prefix.
        """
        choice = self.configuration.heldout
        plans = single_plans(self.assignment.envs, choice.tasks, Split.HELDOUT)
        policy = LocalPolicy(model, tokenizer, temperature=choice.temperature, lockstep=True)
        self.recorder.progress(phase="held-out evaluation", done=0, total=len(plans))
        try:
            with ACTIVITY.during("playing held-out tasks"):
                rollouts = self.env_pool.play_in_lockstep(
                    plans,
                    policy,
                    phase=Phase.HELDOUT,
                    seed=self.configuration.seed,
                    training_step=at if is_stored else 0,
                    recorder=self.recorder if is_stored else None,
                )
        finally:
            self.env_pool.close_policy(policy)
        columns = [column.name for column in self.assignment.columns]
        evaluation = summarize(rollouts, columns, self.assignment.envs)
        self.store.set_heldout(stage, step, evaluation, at=at if is_stored else None)
        metrics = evaluation.metrics()
        if not is_stored:
            self.recorder.metrics(step, {f"{stage}/{name}": value for name, value in metrics.items()})
            return evaluation
        with transaction() as session:
            pruned = prune_by_rule(session, self.assignment.run_id, KeepRule.of(self.configuration.checkpoints))
        if pruned.to_delete:
            names = ", ".join(f"{each.checkpoint.stage} {each.checkpoint.step}" for each in pruned.to_delete)
            self.recorder.log(f"weights pruned by the rule: {names} ({pruned.freed_bytes / 1e6:.1f} MB freed)")
        if at is not None:
            self.recorder.metrics(at, metrics)
        reward = f"{evaluation.reward.mean:.3f}" if evaluation.reward else "none"
        self.recorder.log(f"held-out evaluation of {stage} {step}: reward {reward}, format {evaluation.format:.0%}")
        self.summary[f"heldout_{stage}"] = {"step": step, **to_jsonable_python(evaluation)}
        return evaluation
