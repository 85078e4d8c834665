"""The random audit sample, which can be neither selected nor guessed, with a known chance for each rollout.

A rollout is drawn if its random number u is below its chance π. Chances are higher where a verdict narrows the interval
of the corrected reward more: for high rewards, and for flagged rollouts whose flags are as often right as wrong (Neyman
1934; Zrnic and Candès 2024, Active Statistical Inference, arXiv:2403.03208). Estimates weight verdicts by 1 / π, so
they stay unbiased. If more are drawn than the limits of a day allow, the smallest priorities u / π are kept, which
multiplies all chances by the same threshold (sequential Poisson sampling: Ohlsson 1998, Journal of Official Statistics
14, 149).
"""

import secrets
import uuid
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.tables import Job
from backend.detectors.tables import Flag
from backend.domain.ids import new_id
from backend.domain.vocabulary import UNFINISHED, JobStatus, Phase, RolloutStatus, RunKind
from backend.review import queue
from backend.review.tables import AuditDraw, AuditLimit, AuditSample, ReviewItem
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

SHARE = 0.02
"""Sampled share of the completed rollouts of a run that no detector flagged, if they earn half of the reward."""
FLAGGED_FACTOR = 10.0
"""How much more often a flagged rollout is drawn if its flags are as often right as wrong."""
MOST_PER_RUN = 100
"""Sampled rollouts per run and day."""
PER_DAY = 30
"""Default for sampled rollouts of all runs per day."""
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
    statement = (
        select(Run.id)
        .outerjoin(AuditDraw, AuditDraw.run_id == Run.id)
        .where(Run.next_seq > func.coalesce(AuditDraw.drawn_seq, 0) + 1, can_be_sampled())
    )
    drawn = sum(draw_from(session, run_id) for run_id in session.scalars(statement).all())
    if drawn:
        keep_within_limits(session)
    return drawn


def can_be_sampled() -> ColumnElement[bool]:
    """Whether detectors have scanned a run: always of a recent training run, of an evaluation after the last scan."""
    looks = select(Job.id).where(Job.run_id == Run.id, Job.name == JUDGING_JOB)
    was_looked_at = looks.where(Job.status == JobStatus.DONE, Job.ended_at > func.now() - _LATE).exists()
    is_looked_at = looks.where(Job.status.in_(UNFINISHED)).exists()
    is_recent = or_(Run.ended_at.is_(None), Run.ended_at > func.now() - _LATE)
    return or_(
        and_(Run.kind == RunKind.TRAINING, or_(is_recent, was_looked_at)),
        and_(Run.kind == RunKind.EVALUATION, Run.ended_at.is_not(None), was_looked_at, ~is_looked_at),
    )


def draw_from(session: Session, run_id: uuid.UUID) -> int:
    """A rollout is drawn by its id and the run's secret seed alone: in any order, at any time, the same ones."""
    fresh = insert(AuditDraw).values(run_id=run_id, seed=secrets.randbits(63), share=SHARE, drawn_seq=0)
    session.execute(fresh.on_conflict_do_nothing())
    draw = session.scalars(select(AuditDraw).where(AuditDraw.run_id == run_id).with_for_update()).one()
    if draw.day != (today := datetime.now(UTC).date()):
        draw.day, draw.threshold = today, 1.0
    newest = session.scalars(select(Run.next_seq).where(Run.id == run_id)).one() - 1
    until = min(newest, draw.drawn_seq + _AT_ONCE)
    is_flagged = select(Flag.id).where(Flag.rollout_id == Rollout.id).exists()
    weights = session.scalars(select(Run.weights).where(Run.id == run_id)).one()
    highest = sum(max(0.0, weight) for weight in weights)
    statement = (
        select(Rollout.id, Rollout.reward, is_flagged, ReviewItem.suspicion)
        .outerjoin(ReviewItem, ReviewItem.rollout_id == Rollout.id)
        .where(
            Rollout.run_id == run_id,
            Rollout.seq > draw.drawn_seq,
            Rollout.seq <= until,
            Rollout.status == RolloutStatus.COMPLETED,
            Rollout.phase.in_(_PHASES),
        )
    )
    rows: list[dict[str, Any]] = []
    drawn: set[uuid.UUID] = set()
    for rollout_id, reward, flagged, suspicion in session.execute(statement):
        number, lot = lots_of(draw.seed, rollout_id)
        first = chance_of(draw.share, (reward or 0.0) / highest if highest else 0.0, suspicion if flagged else None)
        if number < first * draw.threshold:
            row = {"chance": first * draw.threshold, "priority": number / first, "is_flagged": flagged}
            drawn.add(rollout_id)
            rows.append({"id": new_id(), "run_id": run_id, "rollout_id": rollout_id, "lot": lot, **row})
    if rows:
        session.execute(insert(AuditSample).on_conflict_do_nothing(), rows)
        queue.place(session, drawn)
    draw.drawn_seq = until
    session.flush()
    return len(rows)


def chance_of(share: float, reward_share: float, suspicion: float | None = None) -> float:
    """Return the chance of a rollout with this share of the highest reward. `suspicion`: of a flagged one.

    It is proportional to the expected standard deviation of the correction by its verdict.
    """
    chance = share * (0.5 + min(1.0, max(0.0, reward_share)))
    if suspicion is not None:
        chance *= FLAGGED_FACTOR * max(0.5, 2 * (suspicion * (1 - suspicion)) ** 0.5)
    return min(1.0, chance)


def keep_within_limits(session: Session, *, per_run: int = MOST_PER_RUN, per_day: int | None = None) -> int:
    """Keep today's smallest priorities, at most this many per run and in total, and return the number removed.

    Waiting items leave the queue. A reviewed one keeps its verdict, but represents no others any more. `per_day`: by
    default the limit of the team.
    """
    per_day = limit_per_day(session) if per_day is None else per_day
    is_today = AuditSample.created_at >= begin_of_day()
    place = func.row_number().over(partition_by=AuditSample.run_id, order_by=AuditSample.priority)
    ranked = select(AuditSample.run_id, AuditSample.priority, place.label("place")).where(is_today).subquery()
    # the first priority that no longer fits, by run and over all
    over_run = select(ranked.c.run_id, ranked.c.priority).where(ranked.c.place == per_run + 1)
    thresholds: dict[uuid.UUID, float] = {row.run_id: row.priority for row in session.execute(over_run)}
    fitting = select(AuditSample.run_id, AuditSample.priority).where(is_today).order_by(AuditSample.priority)
    kept = [row for row in session.execute(fitting) if row.priority < thresholds.get(row.run_id, 1.0)]
    if len(kept) > per_day:
        limit = kept[per_day].priority
        thresholds |= {row.run_id: min(limit, thresholds.get(row.run_id, 1.0)) for row in kept}
    removed = 0
    draws = select(AuditDraw).where(AuditDraw.run_id.in_(thresholds)).with_for_update()
    for draw in session.scalars(draws).all():
        threshold, own = thresholds[draw.run_id], (AuditSample.run_id == draw.run_id, is_today)
        if threshold >= draw.threshold:
            continue
        leave = delete(AuditSample).where(*own, AuditSample.priority >= threshold).returning(AuditSample.rollout_id)
        gone = session.scalars(leave).all()
        factor = threshold / draw.threshold
        session.execute(update(AuditSample).where(*own).values(chance=AuditSample.chance * factor))
        draw.threshold = threshold
        waiting = select(ReviewItem.id).where(ReviewItem.id.in_(gone), ReviewItem.verdict.is_(None))
        queue.drop(session, session.scalars(waiting).all())
        removed += len(gone)
    session.flush()
    return removed


def limit_per_day(session: Session) -> int:
    return session.scalar(select(AuditLimit.per_day)) or PER_DAY


def begin_of_day() -> datetime:
    """The last midnight, by UTC."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def lots_of(seed: int, rollout_id: uuid.UUID) -> tuple[float, float]:
    """Two independent numbers in [0, 1): below its chance it is drawn; and who lends it its place in the queue."""
    digest = blake2b(rollout_id.bytes, key=seed.to_bytes(8), digest_size=16).digest()
    return int.from_bytes(digest[:7]) / 2**56, int.from_bytes(digest[8:15]) / 2**56
