"""Flags that detectors raise, and how detectors are set for an environment."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, func
from sqlalchemy.dialects.postgresql import JSONB, REAL
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.detectors.spec import Action
from backend.domain.vocabulary import Severity

if TYPE_CHECKING:
    from backend.rollouts.tables import Rollout
    from backend.runs.tables import Run


PICKED = "picked"
"""Takes the place of a detector's id in the flag of a rollout that a person put into the review queue."""


class Flag(Base):
    """A detector's suspicion about a rollout or (without one) about a run, with its evidence; see `FlagDraft`."""

    __tablename__ = "flags"
    __table_args__ = (
        UniqueConstraint("run_id", "detector", "key"),
        Index("ix_flags_created_at_id", "created_at", "id"),
    )

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), index=True)
    detector: Mapped[str] = mapped_column(String(60))
    key: Mapped[str] = mapped_column(String(120))
    severity: Mapped[Severity] = mapped_column(text_enum(Severity))
    score: Mapped[float] = mapped_column(REAL)
    sentence: Mapped[str] = mapped_column(Text)
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    cluster: Mapped[str | None] = mapped_column(String(200))
    training_step: Mapped[int | None]
    created_at: Mapped[CreatedAt]

    run: Mapped["Run"] = relationship(lazy="raise")
    rollout: Mapped["Rollout | None"] = relationship(lazy="raise")


class DetectorSetting(Base):
    """`domain.detectors.settings.DetectorSettings` of one detector, for an environment.

    A run's own choices are in its configuration.
    """

    __tablename__ = "detector_settings"
    __table_args__ = (UniqueConstraint("environment_id", "detector"),)

    id: Mapped[Id]
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    detector: Mapped[str] = mapped_column(String(60))
    enabled: Mapped[bool | None]
    thresholds: Mapped[dict[str, Any]] = mapped_column(default=dict)
    action: Mapped[Action | None] = mapped_column(text_enum(Action))
    changed_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())


class LearnedDetector(Base):
    """The detector that was last trained on an environment's verdicts; or why it could not be trained."""

    __tablename__ = "learned_detectors"

    environment_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("environments.id", ondelete="CASCADE"), primary_key=True
    )
    verdicts: Mapped[int]
    """Rollouts with verdicts when it was trained. It is trained again once there are more."""
    features: Mapped[int]
    """Version of the features."""
    problem: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Why there is no model; otherwise empty."""
    report: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """`LearnedReport` as JSON."""
    model: Mapped[dict[str, Any] | None] = mapped_column(JSONB, deferred=True)
    """The rest of `LearnedModel` as JSON."""
    trained_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    """Null: it was trained automatically."""
    trained_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DetectorBenchmark(Base):
    """A stored result of `proctor detectors bench` on one labeled source. The newest of a source counts."""

    __tablename__ = "detector_benchmarks"
    __table_args__ = (Index("ix_detector_benchmarks_source_created_at", "source", "created_at"),)

    id: Mapped[Id]
    source: Mapped[str] = mapped_column(String(60))
    result: Mapped[dict[str, Any]]
    """`SourceBenchmark` as JSON."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
