"""The rewards of runs that have ended, as one row each."""

import uuid
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from backend.core.tables import Base


class KeptRewards(Base):
    """What `results.rewards` reads from a run's rollouts, so that pages of large runs need not read them again."""

    __tablename__ = "run_rewards"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    next_seq: Mapped[int] = mapped_column(BigInteger)
    """`Run.next_seq` when they were read. Rollouts are added and replaced under new numbers only: another number means
    that the row is outdated, and it is not used."""
    rollouts: Mapped[bytes] = mapped_column(LargeBinary)
    """A record per rollout, ordered by group and member."""
    groups: Mapped[bytes] = mapped_column(LargeBinary)
    """A record per group, ordered by id."""
    counts: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    """How the rollouts ended and what they cost, by phase and outcome."""
