"""Studies, the checkpoints that they sample, and the replies that effort studies cut."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.studies.effort import EffortResult
from backend.domain.studies.study import EffortSettings, OnsetResult, OnsetSettings, StudyKind
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import RunStatus

if TYPE_CHECKING:
    from backend.runs.tables import Run


class Study(Base):
    """An investigation of a run's checkpoints. Settings and result: `domain.studies.study`, by kind."""

    __tablename__ = "studies"
    __table_args__ = (Index("ix_studies_run_id_id", "run_id", "id"),)

    id: Mapped[Id]
    kind: Mapped[StudyKind] = mapped_column(text_enum(StudyKind))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    """The run that is studied."""
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="RESTRICT"))
    """The version that is played and grades."""
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it stopped or failed, or what it waits for."""
    settings: Mapped[dict[str, object]] = mapped_column(JSONB)
    result: Mapped[dict[str, object] | None] = mapped_column(JSONB(none_as_null=True))
    """Null until it is completed."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]
    deletion_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("deletions.id", ondelete="RESTRICT"))
    """Deleted: nothing finds it (`core.row_access`)."""

    @property
    def onset_settings(self) -> OnsetSettings:
        return OnsetSettings.model_validate(self.settings)

    @property
    def onset_result(self) -> OnsetResult | None:
        return None if self.result is None else OnsetResult.model_validate(self.result)

    @property
    def effort_settings(self) -> EffortSettings:
        return EffortSettings.model_validate(self.settings)

    @property
    def effort_result(self) -> EffortResult | None:
        return None if self.result is None else EffortResult.model_validate(self.result)


class StudyCheckpoint(Base):
    """A checkpoint of a study, the evaluation that plays it, and its counts; see `StudiedCheckpointResponse`."""

    __tablename__ = "study_checkpoints"
    __table_args__ = (UniqueConstraint("study_id", "checkpoint_id"),)

    id: Mapped[Id]
    study_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    checkpoint_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The evaluation. Studies of one run share them."""
    is_base: Mapped[bool] = mapped_column(default=False)
    """The policy that GRPO started from."""
    stage: Mapped[str] = mapped_column(String(16))
    step: Mapped[int]
    rollouts: Mapped[int | None]
    flagged: Mapped[int | None]
    chance: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    is_above: Mapped[bool | None]
    succeeded: Mapped[int | None]
    reasoned: Mapped[int | None]
    chosen: Mapped[int | None]
    is_done: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[CreatedAt]

    run: Mapped["Run | None"] = relationship(lazy="raise")

    @property
    def name(self) -> str:
        return checkpoint_name(self.stage, self.step)


class EffortReply(Base):
    """A reply whose reasoning was cut, with the worth of the forced answers; see `CutReply`."""

    __tablename__ = "effort_replies"
    __table_args__ = (UniqueConstraint("study_checkpoint_id", "rollout_id"),)

    id: Mapped[Id]
    study_checkpoint_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("study_checkpoints.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID]
    """Not a foreign key: rollouts are deleted with their run."""
    task: Mapped[str] = mapped_column(String(80))
    """`split/index`."""
    characters: Mapped[int]
    values: Mapped[list[float]] = mapped_column(ARRAY(DOUBLE_PRECISION))
    """Mean worth at each fraction, in [0, 1], without answers that could not be graded."""
    score: Mapped[float] = mapped_column(DOUBLE_PRECISION)


def checkpoint_name(stage: str, step: int) -> str:
    return f"step {step}" if stage == Stage.GRPO else f"{stage} {step}".strip()
