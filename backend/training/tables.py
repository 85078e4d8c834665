"""Tables around training runs: alarms, changed settings, pre-flights, uploaded training examples."""

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
    """A problem in a training run, with the reaction to it."""

    __tablename__ = "alarms"
    __table_args__ = (Index("ix_alarms_run_id_id", "run_id", "id"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(60))
    """`entropy_collapse`"""
    step: Mapped[int] = mapped_column(Integer)
    sentence: Mapped[str] = mapped_column(Text)
    """The observation, for a person."""
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """{curve, value, limit, window, formula, source, …}"""
    action: Mapped[AlarmAction] = mapped_column(text_enum(AlarmAction))
    """The automatic reaction of the run."""
    answer: Mapped[AlarmAnswer | None] = mapped_column(text_enum(AlarmAnswer))
    """The answer of a team member."""
    answered_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    answered_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]

    answerer: Mapped["Person | None"] = relationship(lazy="raise")


class Intervention(Base):
    """An action of a detector at one step of a training run: it masked rollouts, or paused or stopped the run."""

    __tablename__ = "interventions"
    __table_args__ = (UniqueConstraint("run_id", "step", "detector"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(Integer)
    detector: Mapped[str] = mapped_column(String(60))
    action: Mapped[Action] = mapped_column(text_enum(Action))
    rollouts: Mapped[int] = mapped_column(Integer)
    """Number of flagged rollouts. For `screen`, they were excluded from the gradient of this step."""
    sentence: Mapped[str] = mapped_column(Text)
    alarm_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("alarms.id", ondelete="SET NULL"))
    """The alarm, if the run was paused or stopped."""
    created_at: Mapped[CreatedAt]


class SettingChange(Base):
    """A setting that a team member or an alarm changed during training. The run applies it between steps."""

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
    """The first step that used it; null while it is pending."""

    asker: Mapped["Person | None"] = relationship(lazy="raise")


class Preflight(Base):
    """The checks of a training run before it starts."""

    __tablename__ = "preflights"

    id: Mapped[Id]
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="CASCADE"), index=True)
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The resolved configuration."""
    status: Mapped[PreflightStatus] = mapped_column(text_enum(PreflightStatus), default=PreflightStatus.QUEUED)
    findings: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """[{name, status, sentence, advice, evidence}]"""
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    reason: Mapped[str | None] = mapped_column(Text)
    """Why the checks failed to run."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    version: Mapped["EnvironmentVersion"] = relationship(lazy="raise")


class ExampleFile(Base):
    """Uploaded conversations for the SFT warm-up."""

    __tablename__ = "lesson_files"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(200))
    artifact: Mapped[str] = mapped_column(Text)
    """Key of the checked JSONL in the artifact store."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    conversations: Mapped[int] = mapped_column(Integer)
    statistics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]

    @property
    def deleted_at(self) -> datetime | None:
        stored = self.statistics.get("deleted_at")
        return datetime.fromisoformat(stored) if stored else None
