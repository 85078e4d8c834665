"""Searches for the checkpoint at which a pattern began, and what they sampled."""

import uuid
from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.db.models.base import Base, CreatedAt, Id, text_enum
from backend.db.models.runs import Run
from backend.domain.onset import Outcome
from backend.domain.vocabulary import RunStatus


class OnsetSearch(Base):
    """A bisection over the checkpoints of a training run. The samples say how far it is."""

    __tablename__ = "onset_searches"
    __table_args__ = (Index("ix_onset_searches_run_id_id", "run_id", "id"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="RESTRICT"))
    """Whose held-out tasks are played."""
    detector: Mapped[str] = mapped_column(String(60))
    cluster: Mapped[str | None] = mapped_column(String(200))
    """Null: whatever the detector flags."""
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
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
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it could not go on."""
    asked_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]


class OnsetSample(Base):
    """One checkpoint of a search: the evaluation that plays it, then what the detector found there."""

    __tablename__ = "onset_samples"
    __table_args__ = (UniqueConstraint("search_id", "checkpoint_id"),)

    id: Mapped[Id]
    search_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("onset_searches.id", ondelete="CASCADE"))
    checkpoint_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The evaluation; searches of one run share them."""
    is_base: Mapped[bool] = mapped_column(default=False)
    """The policy that reinforcement began with: its share is the base rate."""
    step: Mapped[int]
    rollouts: Mapped[int | None]
    """Completed ones; null while they are played."""
    flagged: Mapped[int | None]
    chance: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """p of Fisher's exact test against the base rate."""
    is_above: Mapped[bool | None]
    created_at: Mapped[CreatedAt]

    run: Mapped[Run | None] = relationship(lazy="raise")
