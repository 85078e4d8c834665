"""Sweeps and their trials."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.sweeps.sweep import SweepSettings, TrialState
from backend.domain.vocabulary import RunStatus

if TYPE_CHECKING:
    from backend.environments.tables import EnvironmentVersion
    from backend.runs.tables import Run
    from backend.team.tables import Person


class Sweep(Base):
    """A search over training settings."""

    __tablename__ = "sweeps"
    __table_args__ = (Index("ix_sweeps_project_id_id", "project_id", "id"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(60))
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it stopped or failed."""
    project_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="CASCADE"), index=True)
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """All training settings, with the first value of each swept one."""
    without_certificate: Mapped[str | None] = mapped_column(Text)
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """How it searches: `SweepSettings`."""
    importance: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """Share of each setting in the differences of the rewards. Null until enough trials are completed."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    version: Mapped["EnvironmentVersion"] = relationship(lazy="raise")
    creator: Mapped["Person | None"] = relationship(lazy="raise")

    @property
    def typed_settings(self) -> SweepSettings:
        return SweepSettings.model_validate(self.settings)


class SweepTrial(Base):
    """A point of the search and its training run, which are stored in one transaction."""

    __tablename__ = "sweep_trials"
    __table_args__ = (UniqueConstraint("sweep_id", "number"),)

    id: Mapped[Id]
    sweep_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("sweeps.id", ondelete="CASCADE"))
    number: Mapped[int]
    """From 1."""
    values: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """By the dotted name of the setting."""
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """Null: the run could not be started, or was deleted."""
    state: Mapped[TrialState] = mapped_column(text_enum(TrialState), default=TrialState.RUNNING)
    is_pruned: Mapped[bool] = mapped_column(default=False)
    """Its run was requested to stop, because others do better."""
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it was pruned or failed."""
    reward: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """Held-out reward of its best trained checkpoint."""
    low: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    high: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """95% interval of the reward."""
    step: Mapped[int | None]
    """Step of that checkpoint."""
    last_step: Mapped[int | None]
    """Step of the latest held-out evaluation."""
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    run: Mapped["Run | None"] = relationship(lazy="raise")
