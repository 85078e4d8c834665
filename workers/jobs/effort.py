"""The job `judging.effort`: one move of an effort score.

Both sides play their tasks first; nothing waits meanwhile, because the end of an evaluation wakes the score again. Then
each side's replies are cut and graded in a process with its weights, and the two are compared.
"""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, EffortReply, EffortScore, EffortSide, Run
from backend.db.session import transaction
from backend.domain.effort import Scored, concluded
from backend.domain.vocabulary import RunStatus
from backend.errors import AppError
from backend.evaluations.forms import EvaluationRequest
from backend.evaluations.service import request_stop, resume_run
from backend.evaluations.starting import start_evaluation
from backend.events import announce, run_topic
from backend.judging.effort.queries import checkpoint_name, replies_of, sides_of
from workers.jobs.asker import Asker
from workers.jobs.children import ChildFailed, must_run_child
from workers.jobs.registry import JobContext

MODULE = "workers.models.effort"
"""Cuts a side's replies with its weights, in a process of its own."""

logger = structlog.get_logger(__name__)


class CannotGoOn(Exception):
    """The score ends without an answer; the message says why."""


def run(context: JobContext) -> None:
    score_id = uuid.UUID(context.arguments["score_id"])
    while side_id := next_side(score_id):
        try:
            must_run_child(MODULE, [str(side_id)], run_id=None)
        except ChildFailed as error:
            with transaction() as session:
                give_up(session, context, str(error))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again."""
    score = session.get(EffortScore, uuid.UUID(context.arguments["score_id"]), with_for_update=True)
    if score is not None and not score.status.is_over:
        _end(session, score, RunStatus.FAILED, error)


def next_side(score_id: uuid.UUID) -> uuid.UUID | None:
    """Start what is to be played, or say whose replies are to be cut. None: the score waits or is over."""
    with transaction() as session:
        score = session.get(EffortScore, score_id, with_for_update=True)
        if score is None:
            return None
        sides = sides_of(session, [score.id]).get(score.id, [])
        if score.status.is_over:
            _stop_evaluations(session, score, sides)
            return None
        is_taken_up, score.status = score.status is RunStatus.QUEUED, RunStatus.RUNNING
        try:
            return _next(session, score, sides, is_taken_up=is_taken_up)
        except (CannotGoOn, AppError) as error:
            _end(session, score, RunStatus.FAILED, str(error))
        return None


def _next(session: Session, score: EffortScore, sides: Sequence[EffortSide], *, is_taken_up: bool) -> uuid.UUID | None:
    """`is_taken_up`: somebody started or resumed it just now, so that an evaluation that was stopped goes on too."""
    for side in sides:
        if side.run is None:
            side.run = _evaluation(session, score, side)
            side.run_id = side.run.id
            session.flush()
            announce(session, run_topic(score.run_id))
    played = [_is_played(session, score, side, is_taken_up=is_taken_up) for side in sides]
    if not all(played):
        return None
    for side in sides:
        if not side.is_done:
            return side.id
    _conclude(session, score, sides)
    return None


def _is_played(session: Session, score: EffortScore, side: EffortSide, *, is_taken_up: bool) -> bool:
    evaluation = side.run
    if evaluation is None or evaluation.status is RunStatus.COMPLETED:
        return evaluation is not None
    if evaluation.status.is_over and is_taken_up:
        resume_run(session, _asker(score), evaluation)
    elif evaluation.status.is_over:
        told = evaluation.reason or f"It is {evaluation.status}."
        which = checkpoint_name(side.stage, side.step)
        _end(session, score, RunStatus.STOPPED, f"The evaluation of {which} did not end: {told}")
    return False


def _evaluation(session: Session, score: EffortScore, side: EffortSide) -> Run:
    """Scores on the same tasks share what each checkpoint played."""
    checkpoint = session.get(Checkpoint, side.checkpoint_id) if side.checkpoint_id else None
    if checkpoint is None:
        raise CannotGoOn(f"The checkpoint {checkpoint_name(side.stage, side.step)} is gone.")
    scored = session.get_one(Run, score.run_id)
    plan = dict(score.plan)
    amount = " ".join(f"{name}={plan[name]}" for name in sorted(plan))
    request = EvaluationRequest(
        **plan,
        version_id=score.version_id,
        policy_id=checkpoint.policy_id,
        checkpoint_id=checkpoint.id,
        name=f"Effort: {checkpoint_name(side.stage, side.step)} for {scored.name}"[:200],
        key=str(uuid.uuid5(score.version_id, f"effort {checkpoint.id} {amount}")),
    )
    return start_evaluation(session, _asker(score), request)


def _conclude(session: Session, score: EffortScore, sides: Sequence[EffortSide]) -> None:
    replies = replies_of(session, [side.id for side in sides])
    own = [_scored(each) for side in sides if not side.is_base for each in replies.get(side.id, ())]
    base = [_scored(each) for side in sides if side.is_base for each in replies.get(side.id, ())]
    found = concluded(own, base)
    score.outcome, score.sentence, score.base_limit = found.outcome, found.sentence, found.base_limit
    if found.difference is not None:
        score.difference, score.tasks = found.difference.mean, found.difference.count
        score.low, score.high = found.difference.low, found.difference.high
    _end(session, score, RunStatus.COMPLETED, None)
    logger.info("effort", outcome=str(found.outcome), found=found.sentence)


def _scored(reply: EffortReply) -> Scored:
    return Scored(reply.task, tuple(reply.values), reply.score)


def _end(session: Session, score: EffortScore, status: RunStatus, reason: str | None) -> None:
    score.status, score.reason, score.ended_at = status, reason, datetime.now(UTC)
    session.flush()
    announce(session, run_topic(score.run_id))


def _stop_evaluations(session: Session, score: EffortScore, sides: Sequence[EffortSide]) -> None:
    """Of a score that was stopped: what it waits for is played for nobody any more, unless another score waits."""
    for side in sides:
        if side.run is None or side.run.status.is_over or side.run.stop_requested_at is not None:
            continue
        others = select(EffortSide.id).join(EffortScore, EffortScore.id == EffortSide.score_id)
        others = others.where(EffortSide.run_id == side.run_id, EffortScore.status == RunStatus.RUNNING)
        if session.scalar(others.limit(1)) is None:
            request_stop(session, _asker(score), side.run)


def _asker(score: EffortScore) -> Asker:
    if score.asked_by is None:
        raise CannotGoOn("Who asked for it was removed: ask for another one.")
    return Asker(score.asked_by)
