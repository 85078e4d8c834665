"""A checkpoint's own examination, which its export is held against: as the run stored it, else held for the export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session, undefer

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Recipe, Stage
from backend.domain.vocabulary import Phase, RolloutStatus
from backend.rollouts.tables import Group
from backend.rollouts.tables import Rollout as RolloutRow
from workers.models.policy import LocalPolicy
from workers.training.assignment import Assignment
from workers.training.checkpoints import CheckpointStore
from workers.training.context import single_groups
from workers.training.curriculum import heldout_tasks
from workers.training.env_pool import env_pool_of
from workers.training.heldout_evaluation import HeldoutEvaluation, summarize
from workers.training.weights import PROBES


@dataclass(frozen=True, slots=True)
class Examined:
    """What a checkpoint reached on the held-out tasks of its run."""

    figures: Mapping[str, Any]
    """As the checkpoint's row has them."""
    rewards: Mapping[int, float]
    """By the task's place in the examination."""
    at: int | None
    """The training step that its episodes were seeded with."""
    conversations: Sequence[Sequence[int]] = field(default=(), repr=False)
    """Some of them whole, as tokens."""


def examined(assignment: Assignment, checkpoint: Checkpoint, model: Any, tokenizer: Any) -> Examined:
    """By the rollouts that the run stored of it. Where it stored none, the checkpoint plays now: it was saved when the
    run paused or stopped, or was one of several of the warm-up. What was never examined is from now on."""
    at = training_step_of(checkpoint, assignment.configuration.recipe)
    if found := stored(checkpoint, at):
        return found
    rollouts, examination = play(assignment, model, tokenizer, at=at)
    if not checkpoint.heldout:
        store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
        store.set_heldout(Stage(checkpoint.stage), checkpoint.step, examination, at=None)
    told = [(each.prompt_token_ids or []) + each.completion_token_ids for each in rollouts if each.completion_token_ids]
    return Examined(checkpoint.heldout or examination.as_json(), rewards_of(rollouts), at, told[:PROBES])


def training_step_of(checkpoint: Checkpoint, recipe: Recipe) -> int | None:
    """At which the run examines it: the warm-up's at GRPO's step 0, and then the untrained policy before any step."""
    match Stage(checkpoint.stage):
        case Stage.GRPO:
            return checkpoint.step
        case Stage.SFT:
            return 0
        case Stage.UNTRAINED:
            return None if recipe.has_sft else 0


def play(
    assignment: Assignment, model: Any, tokenizer: Any, *, at: int | None
) -> tuple[list[Rollout], HeldoutEvaluation]:
    """The run's examination, with the same tasks and seeds as while it trained; nothing is stored."""
    configuration = assignment.configuration
    tasks = heldout_tasks(assignment.envs, configuration.heldout.tasks)
    policy = LocalPolicy(model, tokenizer, temperature=configuration.heldout.temperature, lockstep=True)
    with env_pool_of(assignment) as env_pool:
        rollouts = env_pool.play_in_lockstep(
            single_groups(tasks), policy, phase=Phase.HELDOUT, seed=configuration.seed, training_step=at
        )
        env_pool.close_policy(policy)
    columns = [column.name for column in assignment.columns]
    return rollouts, summarize(rollouts, columns, assignment.envs)


def rewards_of(rollouts: Sequence[Rollout]) -> dict[int, float]:
    """By the task's place in the examination."""
    return {rollout.group: rollout.reward for rollout in rollouts if rollout.reward is not None}


def stored(checkpoint: Checkpoint, at: int | None) -> Examined | None:
    """From the database; None where it has no rollouts of this checkpoint's examination."""
    if not checkpoint.heldout or checkpoint.heldout.get("training_step") != at:
        return None
    of_examination = (
        RolloutRow.run_id == checkpoint.run_id,
        RolloutRow.phase == Phase.HELDOUT,
        RolloutRow.training_step.is_not_distinct_from(at),
    )
    with transaction() as session:
        rewards = _rewards(session, of_examination)
        return Examined(checkpoint.heldout, rewards, at, _conversations(session, of_examination)) if rewards else None


def _rewards(session: Session, of_examination: Sequence[ColumnElement[bool]]) -> dict[int, float]:
    is_completed = RolloutRow.status == RolloutStatus.COMPLETED
    places = select(Group.ordinal, RolloutRow.reward).join(Group, Group.id == RolloutRow.group_id)
    found = session.execute(places.where(*of_examination, is_completed))
    return {place: reward for place, reward in found if reward is not None}


def _conversations(session: Session, of_examination: Sequence[ColumnElement[bool]]) -> list[list[int]]:
    statement = (
        select(RolloutRow)
        .options(undefer(RolloutRow.tokens))
        .where(*of_examination, RolloutRow.tokens.is_not(None))
        .order_by(RolloutRow.seq)
        .limit(PROBES)
    )
    kept = [row.tokens or {} for row in session.scalars(statement)]
    return [tokens["prompt"] + tokens["completion"] for tokens in kept if tokens.get("completion")]
