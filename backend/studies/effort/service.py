"""Asking for an effort score. The job `judging.effort` carries it out."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.queue import EFFORT_JOB
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Queue, RunKind, Split
from backend.errors import Conflict, InvalidInput
from backend.runs.tables import Run
from backend.studies.effort import queries
from backend.studies.effort.schemas import MOST_ROLLOUTS, EffortRequest
from backend.studies.service import Studies, held_out_tasks, refuse_more
from backend.studies.tables import EffortScore, EffortSide

if TYPE_CHECKING:
    from backend.web.identity import Actor

TASKS = 64
"""That each side plays, unless said otherwise."""
SCORES = Studies(
    rows=EffortScore,
    checkpoints=EffortSide,
    of=EffortSide.score_id,
    job=EFFORT_JOB,
    queue=Queue.GPU,
    word="effort",
)


class CannotBeScored(Conflict):
    """Nothing of this run can be scored."""


def start_score(session: Session, actor: Actor, run: Run, request: EffortRequest) -> EffortScore:
    """Queue one; one of the same checkpoint that is under way is given back instead."""
    if told := queries.obstacle_to(session, run):
        raise CannotBeScored(told)
    own = _checkpoint(session, run, request)
    is_own = EffortSide.checkpoint_id == own.id, EffortSide.is_base.is_(False)
    is_same = select(EffortSide.id).where(EffortSide.score_id == EffortScore.id, *is_own).exists()
    if known := SCORES.find_open(session, run, is_same):
        return known
    is_training = run.kind is RunKind.TRAINING
    score = EffortScore(
        run_id=run.id,
        version_id=run.version_id,
        plan=_training_plan(run, request) if is_training else _evaluation_plan(run),
        cuts=request.cuts,
        samples=request.samples,
        replies=request.replies,
        measure=request.measure,
        asked_by=actor.person_id,
    )
    SCORES.start(session, actor, score, checkpoint=str(own.id))
    session.add(_side(score, own, is_base=False, run_id=None if is_training else run.id))
    if base := queries.base_of(session, run, own):
        session.add(_side(score, base, is_base=True))
    session.flush()
    return score


def _side(score: EffortScore, checkpoint: Checkpoint, *, is_base: bool, run_id: uuid.UUID | None = None) -> EffortSide:
    return EffortSide(
        score_id=score.id,
        checkpoint_id=checkpoint.id,
        run_id=run_id,
        is_base=is_base,
        stage=checkpoint.stage,
        step=checkpoint.step,
    )


def _checkpoint(session: Session, run: Run, request: EffortRequest) -> Checkpoint:
    if run.kind is RunKind.EVALUATION:
        return session.get_one(Checkpoint, run.checkpoint_id)
    offered = queries.checkpoints_of(session, run)
    if request.checkpoint_id is None:
        return offered[-1]
    chosen = next((each for each in offered if each.id == request.checkpoint_id), None)
    if chosen is None:
        raise InvalidInput(
            fields={"checkpoint_id": "This run's reinforcement has no such checkpoint, or its weights are gone."}
        )
    return chosen


def _training_plan(run: Run, request: EffortRequest) -> dict[str, Any]:
    """Held-out tasks at the temperature that the run begins with. Raises InvalidInput where there are not so many."""
    tasks = held_out_tasks(run.version, request.tasks, TASKS)
    group_size = request.group_size or 1
    refuse_more(tasks * group_size, MOST_ROLLOUTS, "each side")
    temperature = request.temperature or TrainingConfiguration.of_run(run.configuration).grpo.temperature
    return {
        "split": Split.HELDOUT.value,
        "tasks": tasks,
        "group_size": group_size,
        "temperature": temperature,
        "seed": run.seed,
    }


def _evaluation_plan(run: Run) -> dict[str, Any]:
    """What the base has to play to stand beside this evaluation."""
    plan = EvaluationPlan.model_validate(run.configuration)
    return {
        "split": plan.split.value,
        "tasks": plan.tasks,
        "first_task": plan.first_task,
        "task_indexes": list(plan.task_indexes_given),
        "group_size": plan.group_size,
        "temperature": plan.sampling.temperature,
        "top_p": plan.sampling.top_p,
        "max_tokens_per_turn": plan.sampling.max_tokens_per_turn,
        "context": plan.context.model_dump() if plan.context else None,
        "seed": run.seed,
    }
