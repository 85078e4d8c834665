"""Views of a run's rollouts that a person keeps."""

import uuid

from sqlalchemy import ForeignKey, String, Text, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from backend.db.models.base import Base, CreatedAt, Id


class SavedView(Base):
    """A filter and an order under a name."""

    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("person_id", "name"),)

    id: Mapped[Id]
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    filter: Mapped[str] = mapped_column(Text, default="")
    """An expression of `domain.filters`."""
    sort: Mapped[str] = mapped_column(String(100), default="")
    is_shared: Mapped[bool] = mapped_column(default=False, server_default=false())
    """The whole team sees it."""
    created_at: Mapped[CreatedAt]
