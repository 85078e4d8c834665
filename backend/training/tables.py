"""What surrounds a training run: alarms, changed settings, pre-flights, uploaded SFT data."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.detectors.spec import Action
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, PreflightStatus

if TYPE_CHECKING:
    from backend.environments.tables import EnvironmentVersion
    from backend.team.tables import Person


class Alarm(Base):
    """Something in a training run that looks unhealthy: what was seen, what was done about it."""

    __tablename__ = "alarms"
    __table_args__ = (Index("ix_alarms_run_id_id", "run_id", "id"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(60))
    """`entropy_collapse`"""
    step: Mapped[int] = mapped_column(Integer)
    sentence: Mapped[str] = mapped_column(Text)
    """What was seen and what it usually means, for a person."""
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{curve, value, limit, window, formula, source, …}"""
    action: Mapped[AlarmAction] = mapped_column(text_enum(AlarmAction))
    """What the run did by itself."""
    answer: Mapped[AlarmAnswer | None] = mapped_column(text_enum(AlarmAnswer))
    """What a person did about it."""
    answered_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    answered_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]

    answerer: Mapped["Person | None"] = relationship(lazy="raise")


class Intervention(Base):
    """What a detector's action did at one step of a training run: masked rollouts, paused or stopped the run."""

    __tablename__ = "interventions"
    __table_args__ = (UniqueConstraint("run_id", "step", "detector"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(Integer)
    detector: Mapped[str] = mapped_column(String(60))
    action: Mapped[Action] = mapped_column(text_enum(Action))
    rollouts: Mapped[int] = mapped_column(Integer)
    """Of `screen`: kept out of the gradient of this step. Of the others: those that were flagged."""
    sentence: Mapped[str] = mapped_column(Text)
    alarm_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("alarms.id", ondelete="SET NULL"))
    """Of what ended the run: where it is answered."""
    created_at: Mapped[CreatedAt]


class SettingChange(Base):
    """A setting that was changed while the run trained: asked for by a person or an alarm, taken up between steps."""

    __tablename__ = "setting_changes"
    __table_args__ = (Index("ix_setting_changes_run_id_id", "run_id", "id"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(80))
    """Dotted, as in the configuration: `grpo.learning_rate`."""
    before: Mapped[Any] = mapped_column(JSONB)
    after: Mapped[Any] = mapped_column(JSONB)
    alarm_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("alarms.id", ondelete="SET NULL"))
    asked_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    step: Mapped[int | None]
    """The first step that used it; null while it waits."""

    asker: Mapped["Person | None"] = relationship(lazy="raise")


class Preflight(Base):
    """What was found out about a training run before it is queued."""

    __tablename__ = "preflights"

    id: Mapped[Id]
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="CASCADE"), index=True)
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Resolved, as the run's would be."""
    status: Mapped[PreflightStatus] = mapped_column(text_enum(PreflightStatus), default=PreflightStatus.QUEUED)
    findings: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """[{name, status, sentence, advice, evidence}]"""
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it could not be carried out."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    version: Mapped["EnvironmentVersion"] = relationship(lazy="raise")


class ExampleFile(Base):
    """Conversations that somebody uploaded to be imitated by an SFT warm-up."""

    __tablename__ = "lesson_files"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(200))
    artifact: Mapped[str] = mapped_column(Text)
    """Key of the JSONL in the artifact store, as it was checked."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    conversations: Mapped[int] = mapped_column(Integer)
    statistics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
