"""The job `judging.effort`: one move of an effort score.

Both sides play their tasks first; nothing waits meanwhile, because the end of an evaluation wakes the score again. Then
each side's replies are cut and graded in a process with its weights, and the two are compared.
"""

import uuid
from collections.abc import Sequence

import structlog
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.studies.effort import Scored, concluded
from backend.domain.vocabulary import RunStatus
from backend.runs.tables import Run
from backend.studies.effort.queries import replies_of, sides_of
from backend.studies.effort.service import SCORES
from backend.studies.queries import checkpoint_name
from backend.studies.tables import EffortReply, EffortScore, EffortSide
from workers.storage.studies import CannotGoOn, end, fail, id_of, is_played, move, play
from workers.tasks.children import ChildFailed, must_run_child
from workers.tasks.registry import JobContext

MODULE = "workers.models.effort"
"""Cuts a side's replies with its weights, in a process of its own."""

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    while side_id := next_side(id_of(SCORES, context)):
        try:
            must_run_child(MODULE, [str(side_id)], run_id=None)
        except ChildFailed as error:
            with transaction() as session:
                give_up(session, context, str(error))


def give_up(session: Session, context: JobContext, error: str) -> None:
    fail(session, SCORES, context, error)


def next_side(score_id: uuid.UUID) -> uuid.UUID | None:
    """Start what is to be played, or say whose replies are to be cut. None: the score waits or is over."""
    return move(SCORES, score_id, _next)


def _next(session: Session, score: EffortScore, is_taken_up: bool) -> uuid.UUID | None:
    sides = sides_of(session, [score.id]).get(score.id, [])
    for side in sides:
        if side.run is None:
            side.run = _evaluation(session, score, side)
            side.run_id = side.run.id
            session.flush()
            announce(session, run_topic(score.run_id))
    named = [(side, checkpoint_name(side.stage, side.step)) for side in sides]
    played = [is_played(session, score, side, name, is_taken_up=is_taken_up) for side, name in named]
    if not all(played):
        return None
    for side in sides:
        if not side.is_done:
            return side.id
    _conclude(session, score, sides)
    return None


def _evaluation(session: Session, score: EffortScore, side: EffortSide) -> Run:
    checkpoint = session.get(Checkpoint, side.checkpoint_id) if side.checkpoint_id else None
    if checkpoint is None:
        raise CannotGoOn(f"The checkpoint {checkpoint_name(side.stage, side.step)} is gone.")
    amount = " ".join(f"{name}={score.plan[name]}" for name in sorted(score.plan))
    return play(session, score, checkpoint, score.plan, SCORES.word, amount)


def _conclude(session: Session, score: EffortScore, sides: Sequence[EffortSide]) -> None:
    replies = replies_of(session, [side.id for side in sides])
    own = [_scored(each) for side in sides if not side.is_base for each in replies.get(side.id, ())]
    base = [_scored(each) for side in sides if side.is_base for each in replies.get(side.id, ())]
    found = concluded(own, base)
    score.outcome, score.sentence, score.base_limit = found.outcome, found.sentence, found.base_limit
    if found.difference is not None:
        score.difference, score.tasks = found.difference.mean, found.difference.count
        score.low, score.high = found.difference.low, found.difference.high
    end(session, score, RunStatus.COMPLETED)
    logger.info("effort", outcome=str(found.outcome), found=found.sentence)


def _scored(reply: EffortReply) -> Scored:
    return Scored(reply.task, tuple(reply.values), reply.score)
