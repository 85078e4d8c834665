"""Rollouts that a person puts into the review queue, without a detector's word."""

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, announce, run_topic
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Severity
from backend.errors import Conflict
from backend.review import queue
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout
from backend.web.audit import audit
from backend.web.identity import Actor

PICKED = "picked"
"""Stands where a detector's name does."""


def pick(session: Session, actor: Actor, rollout: Rollout) -> Flag:
    """Picked twice is picked once."""
    if known := find_picked(session, rollout):
        return known
    flag = Flag(
        run_id=rollout.run_id,
        rollout_id=rollout.id,
        detector=PICKED,
        key=str(rollout.id),
        severity=Severity.NOTE,
        score=1.0,
        sentence=f"{actor.name} picked it for review.",
        evidence={"title": "Picked by a person"},
        training_step=rollout.training_step,
    )
    session.add(flag)
    session.flush()
    queue.place(session, [rollout.id])
    audit(session, actor, "review.pick", "rollout", rollout.id)
    announce(session, REVIEW, run_topic(rollout.run_id))
    return flag


def take_back(session: Session, actor: Actor, rollout: Rollout) -> None:
    """Out of the queue again, while nobody has judged it there."""
    flag = find_picked(session, rollout)
    if flag is None:
        return
    judged = select(VerdictRecord.id).where(VerdictRecord.flag_id == flag.id, VerdictRecord.taken_back_at.is_(None))
    if session.scalar(judged.limit(1)):
        raise Conflict("It was judged in the meantime, so it stays in the queue's history.")
    session.execute(delete(Flag).where(Flag.id == flag.id))
    queue.drop(session, [rollout.id])
    audit(session, actor, "review.take_back", "rollout", rollout.id)
    announce(session, REVIEW, run_topic(rollout.run_id))


def find_picked(session: Session, rollout: Rollout) -> Flag | None:
    picked = select(Flag).where(Flag.run_id == rollout.run_id, Flag.detector == PICKED, Flag.key == str(rollout.id))
    return session.scalars(picked).one_or_none()
