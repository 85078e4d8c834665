"""Imports of foreign packages: what was sent, what was found out about it, what became of it."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.db.models.base import Base, CreatedAt, Id, text_enum
from backend.db.models.environments import Environment
from backend.db.models.team import Person
from backend.domain.vocabulary import RunStatus


class EnvironmentImport(Base):
    """One package that was sent. It becomes an environment when its author says so."""

    __tablename__ = "environment_imports"
    __table_args__ = (Index("ix_environment_imports_created_at_id", "created_at", "id"),)

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(40))
    """What the environment will be called."""
    kind: Mapped[str] = mapped_column(String(32))
    """`PackageKind`"""
    source: Mapped[str] = mapped_column(Text)
    """Where it came from, in words."""
    files: Mapped[dict[str, str]] = mapped_column(JSONB, deferred=True)
    """Ready to run; the manifest without a `proctor:` block."""
    manifest: Mapped[dict[str, Any]]
    """The manifest without the block."""
    block: Mapped[str] = mapped_column(Text, default="")
    """The `proctor:` block as YAML: proposed, then as its author left it."""
    columns_from: Mapped[str | None] = mapped_column(Text)
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    phase: Mapped[str] = mapped_column(Text, default="")
    """What is being done, in words."""
    report: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """`ImportReport` as JSON."""
    build_log: Mapped[str] = mapped_column(Text, default="")
    environment_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("environments.id", ondelete="SET NULL"), index=True
    )
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]

    environment: Mapped[Environment | None] = relationship(lazy="raise")
    creator: Mapped[Person | None] = relationship(lazy="raise")
