"""What judges and questions have in common as rows."""

import uuid
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, relationship

from backend.db.models.base import Base, CreatedAt, Id
from backend.db.models.policies import Policy


class Inquiry(Base):
    """Something that a policy is asked about rollouts: a judge or a question."""

    __abstract__ = True

    noun: ClassVar[str]
    """What people call it."""

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100), unique=True)
    """Names its column of rollouts."""
    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("policies.id", ondelete="RESTRICT"), index=True)
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """How it is asked."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]

    @declared_attr
    def policy(cls) -> Mapped[Policy]:
        return relationship(Policy, lazy="raise")
