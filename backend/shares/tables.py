"""Read-only links."""

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKey, LargeBinary, String, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.shares import ShareKind

if TYPE_CHECKING:
    from backend.team.tables import Person


class Share(Base):
    """A link to one item. Its secret is only in the link."""

    __tablename__ = "shares"

    id: Mapped[Id]
    kind: Mapped[ShareKind] = mapped_column(text_enum(ShareKind))
    name: Mapped[str] = mapped_column(String(300))
    """The item's name when the link was created."""
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    """For a comparison, a run of the project that fewest people see."""
    environment_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("environments.id", ondelete="CASCADE"), index=True
    )
    choice: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """A `shares.schemas.SharedItem`: the item, with steps and versions as they were."""
    token_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """SHA-256."""
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]
    views: Mapped[int] = mapped_column(default=0, server_default=text("0"))

    creator: Mapped["Person"] = relationship(lazy="raise")

    @property
    def is_active(self) -> bool:
        return self.revoked_at is None and self.expires_at > datetime.now(UTC)

    @property
    def state(self) -> str:
        return "revoked" if self.revoked_at else "active" if self.is_active else "expired"
