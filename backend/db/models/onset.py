"""Searches for the checkpoint at which a pattern began, and what they sampled."""

import uuid

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION
from sqlalchemy.orm import Mapped, mapped_column

from backend.db.models.base import text_enum
from backend.db.models.studies import StudiedCheckpoint, Study
from backend.domain.onset import Outcome


class OnsetSearch(Study):
    """A bisection over the checkpoints of a training run."""

    __tablename__ = "onset_searches"
    __table_args__ = (Index("ix_onset_searches_run_id_id", "run_id", "id"),)
    noun = "search for an onset"

    detector: Mapped[str] = mapped_column(String(60))
    cluster: Mapped[str | None] = mapped_column(String(200))
    """Null: whatever the detector flags."""
    tasks: Mapped[int]
    group_size: Mapped[int]
    temperature: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    seed: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int]
    """Checkpoints that a running training saves later are left out."""
    hint_step: Mapped[int | None]
    """In the middle of the rollouts that people judged."""
    outcome: Mapped[Outcome | None] = mapped_column(text_enum(Outcome))
    honest_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    """The last checkpoint before the onset; the policy that reinforcement began with, where there is no other."""
    hacking_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    """The first one that exceeds the base rate."""
    honest_step: Mapped[int | None]
    """0: before reinforcement."""
    hacking_step: Mapped[int | None]
    is_monotone: Mapped[bool | None]
    remarks: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """What has to be known beside the interval, in sentences."""


class OnsetSample(StudiedCheckpoint):
    """What the detector found in what a checkpoint played; the base's share is the base rate."""

    __tablename__ = "onset_samples"
    __table_args__ = (UniqueConstraint("search_id", "checkpoint_id"),)

    search_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("onset_searches.id", ondelete="CASCADE"))
    rollouts: Mapped[int | None]
    """Completed ones; null while they are played."""
    flagged: Mapped[int | None]
    chance: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """p of Fisher's exact test against the base rate."""
    is_above: Mapped[bool | None]
