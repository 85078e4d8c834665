"""Projects and the roles that they give their members."""

import uuid
from typing import TYPE_CHECKING

from sqlalchemy import ForeignKey, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.vocabulary import Role

if TYPE_CHECKING:
    from backend.team.tables import Person


class Project(Base):
    """Environments, policies and runs, and everything that belongs to them."""

    __tablename__ = "projects"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(60), unique=True)
    description: Mapped[str] = mapped_column(Text, default="", server_default="")
    is_restricted: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Only its members and administrators see it. Else the whole team does."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]


class ProjectMember(Base):
    """A role in one project, in place of the person's role in the team."""

    __tablename__ = "project_members"

    project_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    person_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("people.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    role: Mapped[Role] = mapped_column(text_enum(Role))
    added_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    added_at: Mapped[CreatedAt]

    person: Mapped["Person"] = relationship(lazy="raise", foreign_keys=[person_id])
