"""How much disk the weights take, and how much is left where they are kept."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.web.formats import size

LOW_SHARE = 0.05
LOW_CHECKPOINTS = 10
"""Less room than for so many more checkpoints, as large as the largest one here, is little."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Weights of checkpoints in the artifact store."""

    checkpoints: int
    """With weights."""
    stored_bytes: int
    pruned: int
    freed_bytes: int
    """What pruning gave back so far."""
    largest_bytes: int
    free_bytes: int | None
    """Left on the disk; None where the store has no bounds."""
    total_bytes: int | None

    @property
    def warning(self) -> str:
        """What to do when little is left; empty otherwise."""
        if self.free_bytes is None or self.total_bytes is None:
            return ""
        wanted = max(LOW_SHARE * self.total_bytes, LOW_CHECKPOINTS * self.largest_bytes)
        if self.free_bytes >= wanted:
            return ""
        return (
            f"Only {size(self.free_bytes)} of disk are left where weights are kept. A training run whose checkpoint"
            " cannot be written fails: prune checkpoints, or make room on the disk."
        )


def disk_use(session: Session, run_ids: Sequence[uuid.UUID] | None = None) -> DiskUse:
    """Of all checkpoints, or of these runs'."""
    has_weights = Checkpoint.pruned_at.is_(None)
    statement = select(
        func.count().filter(has_weights),
        func.coalesce(func.sum(Checkpoint.size_bytes).filter(has_weights), 0),
        func.count().filter(~has_weights),
        func.coalesce(func.sum(Checkpoint.size_bytes).filter(~has_weights), 0),
        func.coalesce(func.max(Checkpoint.size_bytes), 0),
    )
    if run_ids is not None:
        statement = statement.where(Checkpoint.run_id.in_(run_ids))
    stored, stored_bytes, pruned, freed, largest = session.execute(statement).one()
    space = artifacts.free_space()
    return DiskUse(
        checkpoints=stored,
        stored_bytes=int(stored_bytes),
        pruned=pruned,
        freed_bytes=int(freed),
        largest_bytes=largest,
        free_bytes=space[0] if space else None,
        total_bytes=space[1] if space else None,
    )
