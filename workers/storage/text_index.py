"""Makes what was said in rollouts findable, a while after they are stored: their own writing stays fast."""

import time
import uuid

from sqlalchemy import Select, func, insert, select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.vocabulary import RunKind
from backend.rollouts.filters import body_of
from backend.rollouts.tables import Rollout, RolloutText
from backend.runs.tables import Run

BATCH = 500
_LOCK = 0x70726F63
"""Of the advisory lock under which one process at a time does this."""


def index_texts(seconds: float) -> int:
    """Go on with runs that have new rollouts, newest run first, for about so long. Returns how many were added."""
    until = time.monotonic() + seconds
    added = 0
    while time.monotonic() < until:
        count = _index_some()
        if count == 0:
            break
        added += count
    return added


def _index_some() -> int:
    """One batch of one run, in a transaction of its own."""
    with transaction() as session:
        if not session.scalar(select(func.pg_try_advisory_xact_lock(_LOCK))):
            return 0
        found = session.execute(_unindexed()).first()
        return add_texts(session, *found) if found else 0


def _unindexed() -> Select[uuid.UUID, int]:
    """A run and the number behind which its rollouts are missing. Hand play changes while it is played: left out."""
    last = select(func.max(RolloutText.seq)).where(RolloutText.run_id == Run.id).correlate(Run).scalar_subquery()
    done = func.coalesce(last, 0)
    newer = select(Rollout.id).where(Rollout.run_id == Run.id, Rollout.seq > done).correlate(Run).exists()
    wanted = select(Run.id, done).where(Run.kind != RunKind.PLAY, newer)
    return wanted.order_by(Run.created_at.desc()).limit(1)


def add_texts(session: Session, run_id: uuid.UUID, done: int) -> int:
    """One batch of a run's rollouts behind number `done`; how many there were."""
    batch = (
        select(Rollout.run_id, Rollout.seq, Rollout.messages)
        .where(Rollout.run_id == run_id, Rollout.seq > done)
        .order_by(Rollout.seq)
        .limit(BATCH)
        .subquery()
    )
    rows = select(batch.c.run_id, batch.c.seq, body_of(batch.c.messages))
    added = insert(RolloutText).from_select(["run_id", "seq", "body"], rows).returning(RolloutText.seq)
    return len(session.execute(added).all())
