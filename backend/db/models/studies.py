"""What searches for an onset and effort scores have in common as rows: checkpoints play, and that answers something."""

import uuid
from datetime import datetime
from typing import ClassVar

from sqlalchemy import ForeignKey, Text
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, relationship

from backend.db.models.base import Base, CreatedAt, Id, text_enum
from backend.db.models.runs import Run
from backend.domain.vocabulary import RunStatus


class Study(Base):
    """Something that is asked of stored checkpoints. What they played says how far it is, and answers it."""

    __abstract__ = True

    noun: ClassVar[str]
    """What people call it."""

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    """The run at which it was asked for."""
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="RESTRICT"))
    """Whose tasks are played, and which grades."""
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it could not go on, or what it waits for."""
    asked_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]


class StudiedCheckpoint(Base):
    """A checkpoint of a study, and the evaluation that plays it."""

    __abstract__ = True

    id: Mapped[Id]
    checkpoint_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The evaluation; studies of one run share them."""
    is_base: Mapped[bool] = mapped_column(default=False)
    """The policy that reinforcement began with."""
    step: Mapped[int]
    created_at: Mapped[CreatedAt]

    @declared_attr
    def run(cls) -> Mapped[Run | None]:
        return relationship(Run, lazy="raise")
