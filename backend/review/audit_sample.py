"""The random audit sample of unflagged rollouts, which can be neither selected nor guessed."""

import secrets
import uuid
from datetime import timedelta
from hashlib import blake2b

from sqlalchemy import and_, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.ids import new_id
from backend.domain.vocabulary import JobStatus, Phase, RolloutStatus, RunKind
from backend.review import queue
from backend.review.tables import AuditDraw, AuditSample
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

SHARE = 0.02
"""Sampled share of the completed rollouts of a run."""
_LATE = timedelta(days=1)
"""Time after the last scan in which a run is still sampled, in case housekeeping was down."""
_AT_ONCE = 50_000
_PHASES = (Phase.TRAIN, Phase.EVALUATION)
"""The phases that detectors scan."""


def draw_audits(session: Session) -> int:
    """Sample from rollouts stored since the last call, and return the number of sampled rollouts.

    Covers all runs that detectors scan, by any policy and of any size: otherwise an item in the queue would certainly
    be flagged. Training runs are sampled while they train, evaluations after their scan.
    """
    looks = select(Job.id).where(Job.run_id == Run.id, Job.name == JUDGING_JOB)
    was_looked_at = looks.where(Job.status == JobStatus.DONE, Job.ended_at > func.now() - _LATE).exists()
    is_looked_at = looks.where(Job.status.in_([JobStatus.QUEUED, JobStatus.LEASED])).exists()
    is_recent = or_(Run.ended_at.is_(None), Run.ended_at > func.now() - _LATE)
    statement = (
        select(Run.id)
        .outerjoin(AuditDraw, AuditDraw.run_id == Run.id)
        .where(
            Run.next_seq > func.coalesce(AuditDraw.drawn_seq, 0) + 1,
            or_(
                and_(Run.kind == RunKind.TRAINING, or_(is_recent, was_looked_at)),
                and_(Run.kind == RunKind.EVALUATION, Run.ended_at.is_not(None), was_looked_at, ~is_looked_at),
            ),
        )
    )
    return sum(draw_from(session, run_id) for run_id in session.scalars(statement).all())


def draw_from(session: Session, run_id: uuid.UUID) -> int:
    """A rollout is drawn by its id and the run's secret seed alone: in any order, at any time, the same ones."""
    fresh = insert(AuditDraw).values(run_id=run_id, seed=secrets.randbits(63), share=SHARE, drawn_seq=0)
    session.execute(fresh.on_conflict_do_nothing())
    draw = session.scalars(select(AuditDraw).where(AuditDraw.run_id == run_id).with_for_update()).one()
    newest = session.scalars(select(Run.next_seq).where(Run.id == run_id)).one() - 1
    until = min(newest, draw.drawn_seq + _AT_ONCE)
    statement = select(Rollout.id).where(
        Rollout.run_id == run_id,
        Rollout.seq > draw.drawn_seq,
        Rollout.seq <= until,
        Rollout.status == RolloutStatus.COMPLETED,
        Rollout.phase.in_(_PHASES),
        ~select(Flag.id).where(Flag.rollout_id == Rollout.id).exists(),
    )
    lots = {rollout_id: lots_of(draw.seed, rollout_id) for rollout_id in session.scalars(statement)}
    drawn = {rollout_id: lot for rollout_id, (chance, lot) in lots.items() if chance < draw.share}
    if drawn:
        rows = [{"id": new_id(), "run_id": run_id, "rollout_id": each, "lot": lot} for each, lot in drawn.items()]
        session.execute(insert(AuditSample).on_conflict_do_nothing(), rows)
        queue.place(session, drawn)
    draw.drawn_seq = until
    session.flush()
    return len(drawn)


def lots_of(seed: int, rollout_id: uuid.UUID) -> tuple[float, float]:
    """Two independent numbers in [0, 1): below the share it is drawn; and who lends it its place in the queue."""
    digest = blake2b(rollout_id.bytes, key=seed.to_bytes(8), digest_size=16).digest()
    return int.from_bytes(digest[:7]) / 2**56, int.from_bytes(digest[8:15]) / 2**56
