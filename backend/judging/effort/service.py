"""Starting, stopping and resuming an effort score. The job `judging.effort` carries it out."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, EffortScore, EffortSide, Job, Run
from backend.domain.manifest import Manifest
from backend.domain.plans import EvaluationPlan
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import JobStatus, Queue, RunKind, RunStatus, Split
from backend.errors import Conflict, InvalidInput
from backend.events import announce, run_topic
from backend.judging.effort import queries
from backend.judging.effort.forms import MOST_ROLLOUTS, EffortRequest
from backend.queue import EFFORT_JOB, enqueue
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

TASKS = 64
"""That each side plays, unless said otherwise."""
UNDER_WAY = (RunStatus.QUEUED, RunStatus.RUNNING)


class CannotBeScored(Conflict):
    """Nothing of this run can be scored."""


class ScoreIsOver(Conflict):
    """This effort score is over."""


class ScoreGoesOn(Conflict):
    """This effort score is being made."""


def start_score(session: Session, actor: Actor, run: Run, request: EffortRequest) -> EffortScore:
    """Queue one; one of the same checkpoint that is under way is given back instead."""
    if told := queries.obstacle_to(session, run):
        raise CannotBeScored(told)
    own = _checkpoint(session, run, request)
    session.execute(select(Run.id).where(Run.id == run.id).with_for_update())
    if known := _open_score(session, run.id, own.id):
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
    session.add(score)
    session.flush()
    base = queries.base_of(session, run, own)
    session.add(_side(score, own, is_base=False, run_id=None if is_training else run.id))
    if base is not None:
        session.add(_side(score, base, is_base=True))
    session.flush()
    wake(session, score.id)
    audit(session, actor, "effort.start", "run", run.id, checkpoint=str(own.id))
    announce(session, run_topic(run.id))
    return score


def stop_score(session: Session, actor: Actor, score: EffortScore) -> None:
    """What was cut is kept; what is under way is stopped by the job."""
    if score.status.is_over:
        raise ScoreIsOver(f"This effort score is {score.status} already.")
    score.status, score.reason, score.ended_at = RunStatus.STOPPED, "Stopped on request.", datetime.now(UTC)
    session.flush()
    wake(session, score.id)
    audit(session, actor, "effort.stop", "run", score.run_id, score=str(score.id))
    announce(session, run_topic(score.run_id))


def resume_score(session: Session, actor: Actor, score: EffortScore) -> None:
    """Go on where the replies stand."""
    if not score.status.is_over:
        raise ScoreGoesOn
    if score.status is RunStatus.COMPLETED:
        raise ScoreIsOver("This effort score is completed. Ask for another one.")
    score.status = RunStatus.QUEUED
    score.reason = score.ended_at = None
    session.flush()
    wake(session, score.id)
    audit(session, actor, "effort.resume", "run", score.run_id, score=str(score.id))
    announce(session, run_topic(score.run_id))


def follow_evaluation(session: Session, run_id: uuid.UUID) -> None:
    """An evaluation ended: the scores that wait for it go on."""
    waiting = (
        select(EffortSide.score_id)
        .join(EffortScore, EffortScore.id == EffortSide.score_id)
        .where(EffortSide.run_id == run_id, EffortScore.status.in_(UNDER_WAY))
    )
    for score_id in session.scalars(waiting).all():
        wake(session, score_id)


def wake(session: Session, score_id: uuid.UUID) -> None:
    """One waiting job is enough; one that is at work may have read too early."""
    is_same = Job.arguments["score_id"].astext == str(score_id)
    waiting = select(Job.id).where(Job.name == EFFORT_JOB, Job.status == JobStatus.QUEUED, is_same)
    if session.scalar(waiting.limit(1)) is None:
        enqueue(session, EFFORT_JOB, queue=Queue.GPU, arguments={"score_id": str(score_id)})


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


def _open_score(session: Session, run_id: uuid.UUID, checkpoint_id: uuid.UUID) -> EffortScore | None:
    statement = (
        select(EffortScore)
        .join(EffortSide, EffortSide.score_id == EffortScore.id)
        .where(
            EffortScore.run_id == run_id,
            EffortScore.status.in_(UNDER_WAY),
            EffortSide.checkpoint_id == checkpoint_id,
            EffortSide.is_base.is_(False),
        )
    )
    return session.scalars(statement.limit(1)).first()


def _training_plan(run: Run, request: EffortRequest) -> dict[str, Any]:
    """Held-out tasks at the temperature that the run begins with. Raises InvalidInput where there are not so many."""
    available = Manifest.model_validate(run.version.manifest).proctor.tasks.heldout
    tasks = request.tasks or min(TASKS, available)
    if tasks > available:
        raise InvalidInput(fields={"tasks": f"There are {available:,} held-out tasks."})
    group_size = request.group_size or 1
    if tasks * group_size > MOST_ROLLOUTS:
        raise InvalidInput(fields={"tasks": f"At most {MOST_ROLLOUTS:,} rollouts of each side."})
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
