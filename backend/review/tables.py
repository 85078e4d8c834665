"""Verdicts, the review's list and samples, and fixtures out of verdicts."""

import uuid
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    SmallInteger,
    String,
    Text,
    UniqueConstraint,
    Uuid,
    false,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, distinct_on
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.vocabulary import Verdict

if TYPE_CHECKING:
    from backend.rollouts.tables import Rollout
    from backend.runs.tables import Run
    from backend.team.tables import Person


class VerdictRecord(Base):
    """A reviewer's decision on a rollout or a flag. It is never overwritten: the newest one in force counts."""

    __tablename__ = "verdicts"

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    rollout_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), index=True)
    flag_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("flags.id", ondelete="SET NULL"), index=True)
    verdict: Mapped[Verdict] = mapped_column(text_enum(Verdict))
    comment: Mapped[str] = mapped_column(Text, default="")
    is_blind: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Given on the transcript alone: whether anything had flagged it was not shown."""
    is_bulk: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Given to a whole cluster. No reviewer saw this rollout, so no statistic counts it."""
    person_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    taken_back_at: Mapped[datetime | None]
    """Set when the reviewer took it back: it stays in the history and has no effect."""

    person: Mapped["Person | None"] = relationship(lazy="raise")


NEWEST_VERDICTS = (
    select(VerdictRecord.rollout_id, VerdictRecord.verdict, VerdictRecord.is_bulk)
    .where(VerdictRecord.rollout_id.is_not(None), VerdictRecord.taken_back_at.is_(None))
    .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
    .ext(distinct_on(VerdictRecord.rollout_id))
)
"""The newest verdict in force by rollout. Narrow it to a run or a task."""
_WAITING = text("verdict IS NULL")


class ReviewItem(Base):
    """An item of the review queue: a rollout with flags or in the audit sample, or a flag about a run.

    The rows are kept so that an index gives the order of the queue: `review.queue` writes them from flags and
    audit samples. The id is the rollout's, or the flag's where no rollout is meant, and says nothing of which it is.
    """

    __tablename__ = "review_items"
    __table_args__ = (
        Index("ix_review_items_waiting", "rank", "id", postgresql_where=_WAITING),
        Index("ix_review_items_waiting_environment", "environment_id", "rank", "id", postgresql_where=_WAITING),
        Index("ix_review_items_waiting_run", "run_id", "rank", "id", postgresql_where=_WAITING),
        Index("ix_review_items_harm", "harm", "id", postgresql_where=text("verdict IS NULL AND harm IS NOT NULL")),
        Index("ix_review_items_cluster", "environment_id", "cluster"),
        Index("ix_review_items_created_at_id", "created_at", "id"),
    )

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), unique=True)
    detectors: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """Empty: the item belongs to the audit sample."""
    cluster: Mapped[str | None] = mapped_column(String(300))
    """`detector: cluster` of the strongest flag that has one; means something within the environment."""
    suspicion: Mapped[float] = mapped_column(DOUBLE_PRECISION, default=0.0)
    """1 - Π(1 - p·s) over its flags, p the detector's measured precision."""
    reward_share: Mapped[float] = mapped_column(DOUBLE_PRECISION, default=0.0)
    """Reward as a share of the sum of positive weights, within [0, 1]; 1 for a flag about a run."""
    rank: Mapped[float] = mapped_column(DOUBLE_PRECISION, default=0.0)
    """Highest first: suspicion x reward share / √cluster size, less 1 for all but the first of a cluster. Items
    of the audit sample borrow all of these but the reward share from a flagged item."""
    harm: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """Expected harm of a flagged item: suspicion x reward share, summed over the waiting items of its cluster, twice
    while their run trains. Negative for repeats of a cluster. Null: not flagged, or in the audit sample."""
    verdict: Mapped[Verdict | None] = mapped_column(text_enum(Verdict))
    """The newest; null while it waits."""
    reviewers: Mapped[list[uuid.UUID]] = mapped_column(ARRAY(Uuid), default=list)
    """People who reviewed it and gave a verdict."""
    created_at: Mapped[CreatedAt]
    """When the rollout was stored, or the flag where no rollout is meant."""

    run: Mapped["Run"] = relationship(lazy="raise")
    rollout: Mapped["Rollout | None"] = relationship(lazy="raise")


class ReviewAssignment(Base):
    """The assignment of a reviewer to an item. Several people may be assigned to the same item."""

    __tablename__ = "review_assignments"
    __table_args__ = (UniqueConstraint("item_id", "person_id"),)

    id: Mapped[Id]
    item_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("review_items.id", ondelete="CASCADE"))
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), index=True)
    assigned_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]

    person: Mapped["Person"] = relationship(lazy="raise", foreign_keys=[person_id])


class ReviewComment(Base):
    """A comment in the thread of an item."""

    __tablename__ = "review_comments"

    id: Mapped[Id]
    item_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("review_items.id", ondelete="CASCADE"), index=True)
    person_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    text: Mapped[str] = mapped_column(Text)
    created_at: Mapped[CreatedAt]

    person: Mapped["Person | None"] = relationship(lazy="raise")


class ReviewTarget(Base):
    """The daily target of a reviewer."""

    __tablename__ = "review_targets"

    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), primary_key=True)
    per_day: Mapped[int]


class AuditDraw(Base):
    """Seed and progress of a run's audit sample."""

    __tablename__ = "audit_draws"

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seed: Mapped[int] = mapped_column(BigInteger)
    share: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    drawn_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    """Rollouts up to this number were drawn from."""
    day: Mapped[date | None]
    """The day of the latest sampling, by UTC."""
    threshold: Mapped[float] = mapped_column(DOUBLE_PRECISION, default=1.0, server_default=text("1"))
    """Factor of that day's chances that keeps the sample within its daily limits."""
    created_at: Mapped[CreatedAt]


class AuditSample(Base):
    """A rollout that the run's seed drew, with its known chance. One that is flagged later stays as it was drawn."""

    __tablename__ = "audit_samples"

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    rollout_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), unique=True)
    lot: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    """In [0, 1): which of the flagged ones in the queue lends it its suspicion."""
    chance: Mapped[float] = mapped_column(DOUBLE_PRECISION, default=0.02, server_default=text("0.02"))
    """The probability with which it is in the sample."""
    priority: Mapped[float] = mapped_column(DOUBLE_PRECISION, default=0.5, server_default=text("0.5"))
    """In [0, 1), random: its number over its first chance. The smallest are kept and reviewed first."""
    is_flagged: Mapped[bool] = mapped_column(default=False, server_default=false())
    """A detector had flagged it when it was drawn."""
    created_at: Mapped[CreatedAt]


class AuditLimit(Base):
    """How many rollouts the audit sample takes per day, in one row. No row: the default."""

    __tablename__ = "audit_limits"
    __table_args__ = (CheckConstraint("id = 1", name="single"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, default=1)
    per_day: Mapped[int]


class VerdictFixture(Base):
    """A judged episode's actions with the reward that every later version must give them. Never changed: another bound
    is another row, and what was taken back stays."""

    __tablename__ = "fixtures"

    id: Mapped[Id]
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"), index=True)
    rollout_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("rollouts.id", ondelete="SET NULL"), index=True)
    task: Mapped[dict[str, Any]]
    """Split, index, level, seed and arguments."""
    replies: Mapped[list[dict[str, Any]]]
    """The policy's replies in order: [{"reply": …}]."""
    lowest: Mapped[float | None]
    highest: Mapped[float | None]
    comment: Mapped[str] = mapped_column(Text, default="")
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    """Who judged, or moved the bound."""
    created_at: Mapped[CreatedAt]
    withdrawn_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    withdrawn_at: Mapped[datetime | None]
    withdrawn_because: Mapped[str] = mapped_column(Text, default="", server_default="")

    creator: Mapped["Person | None"] = relationship(lazy="raise", foreign_keys=[created_by])
    withdrawer: Mapped["Person | None"] = relationship(lazy="raise", foreign_keys=[withdrawn_by])

    @property
    def name(self) -> str:
        return f"{'honest' if self.is_positive else 'hack'}-{self.id.hex[-6:]}"

    @property
    def is_positive(self) -> bool:
        return self.lowest is not None

    @property
    def verdict(self) -> Verdict:
        """On which it rests."""
        return Verdict.HONEST if self.is_positive else Verdict.HACK

    @property
    def bound(self) -> float | None:
        return self.lowest if self.highest is None else self.highest
