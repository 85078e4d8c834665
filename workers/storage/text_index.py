"""Index the text of conversations some time after they are stored, so that storing stays fast."""

import time
import uuid

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.vocabulary import RunKind
from backend.rollouts.filters import body_of
from backend.rollouts.tables import Rollout, RolloutText
from backend.runs.tables import Run

BATCH = 500
_LOCK = 0x70726F63
"""Advisory lock: one process at a time builds the index."""


def index_texts(seconds: float) -> int:
    """Index new rollouts for about `seconds`, newest run first. Returns the number of rollouts that were added.

    Hand play changes while it is played and is not indexed.
    """
    last = select(func.max(RolloutText.seq)).where(RolloutText.run_id == Run.id).correlate(Run).scalar_subquery()
    done = func.coalesce(last, 0)
    newer = select(Rollout.id).where(Rollout.run_id == Run.id, Rollout.seq > done).correlate(Run).exists()
    unindexed = select(Run.id, done).where(Run.kind != RunKind.PLAY, newer).order_by(Run.created_at.desc()).limit(1)
    until = time.monotonic() + seconds
    added = 0
    while time.monotonic() < until:
        with transaction() as session:
            if not session.scalar(select(func.pg_try_advisory_xact_lock(_LOCK))):
                break
            found = session.execute(unindexed).first()
            count = add_texts(session, *found) if found else 0
        if count == 0:
            break
        added += count
    return added


def add_texts(session: Session, run_id: uuid.UUID, done: int) -> int:
    """Index one batch of a run's rollouts after number `done`. Returns their number."""
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
