"""Deletions that can still be undone."""

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import ForeignKey, Index, String, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.deletions import KEEP_DELETED, DeletedKind

if TYPE_CHECKING:
    from backend.team.tables import Person


class Deletion(Base):
    """A deleted item. Runs, environments, checkpoints and studies that it takes along have its id as their mark."""

    __tablename__ = "deletions"
    __table_args__ = (Index("ix_deletions_purge_at", "purge_at"),)

    id: Mapped[Id]
    request_id: Mapped[uuid.UUID] = mapped_column(index=True)
    """The same for all deletions of one request, which are undone together."""
    kind: Mapped[DeletedKind] = mapped_column(text_enum(DeletedKind))
    item_id: Mapped[uuid.UUID]
    name: Mapped[str] = mapped_column(String(200))
    project_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("projects.id", ondelete="RESTRICT"), index=True)
    contents: Mapped[dict[str, int]] = mapped_column(JSONB, default=dict, server_default=text("'{}'"))
    """Numbers of rows that were deleted with it, by kind: {"runs": 2, "rollouts": 142}."""
    names: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default=text("'{}'"))
    """Former names of the environment, of policies and of the grader by their ids. Their names became free."""
    deleted_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    deleted_at: Mapped[CreatedAt]
    purge_at: Mapped[datetime]
    """When its rows and files are removed."""
    purge_started_at: Mapped[datetime | None]

    person: Mapped["Person | None"] = relationship(lazy="raise")

    @classmethod
    def of(cls, kind: DeletedKind, item_id: uuid.UUID, by: uuid.UUID | None, **values: Any) -> Self:
        """Return the deletion of an item, from now on and for 30 days."""
        now = datetime.now(UTC)
        times = {"deleted_at": now, "purge_at": now + KEEP_DELETED}
        return cls(kind=kind, item_id=item_id, deleted_by=by, **times, **values)
