"""Policies: what acts."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.projects.access import DEFAULT_PROJECT
from backend.domain.vocabulary import PolicyKind


class Policy(Base):
    __tablename__ = "policies"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100), unique=True)
    kind: Mapped[PolicyKind] = mapped_column(text_enum(PolicyKind))
    description: Mapped[str] = mapped_column(Text, default="")
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """scripted: {script, constant?}. openai_api: {base_url, model, …}. local: {architecture, …} or {base}."""
    secret: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The endpoint's key, encrypted and bound to its base URL. Write-only."""
    project_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("projects.id", ondelete="RESTRICT"),
        default=DEFAULT_PROJECT,
        server_default=text(f"'{DEFAULT_PROJECT}'"),
        index=True,
    )
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    archived_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]

    @property
    def has_secret(self) -> bool:
        return self.secret is not None
