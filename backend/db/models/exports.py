"""Exports of checkpoints and their passports."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Text, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.db.models.base import Base, CreatedAt, Id, text_enum
from backend.db.models.policies import Checkpoint
from backend.db.models.runs import Run
from backend.domain.vocabulary import ExportForm, ExportStatus


class Export(Base):
    __tablename__ = "exports"

    id: Mapped[Id]
    checkpoint_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("checkpoints.id", ondelete="RESTRICT"), index=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="RESTRICT"), index=True)
    """The training run that made the checkpoint."""
    status: Mapped[ExportStatus] = mapped_column(text_enum(ExportStatus), default=ExportStatus.QUEUED)
    form: Mapped[ExportForm] = mapped_column(text_enum(ExportForm), default=ExportForm.FULL, server_default="full")
    options: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default=text("'{}'"))
    """{licence, gguf type, hub repository, …}"""
    reason: Mapped[str | None] = mapped_column(Text)
    artifact: Mapped[str | None] = mapped_column(Text)
    """Key of the zip in the artifact store."""
    card: Mapped[str] = mapped_column(Text, default="")
    """The model card, Markdown."""
    passport: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The proof: probe comparison, before and after table, file hashes."""
    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    checkpoint: Mapped[Checkpoint] = relationship(lazy="raise")
    run: Mapped[Run] = relationship(lazy="raise")
