"""How detectors are set for an environment."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, String, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from backend.db.models.base import Base, CreatedAt, Id, text_enum
from backend.domain.detectors.face import Action


class DetectorSetting(Base):
    """`domain.detectors.settings.DetectorSettings` of one detector, for an environment.

    A run's own choices are in its configuration.
    """

    __tablename__ = "detector_settings"
    __table_args__ = (UniqueConstraint("environment_id", "detector"),)

    id: Mapped[Id]
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"))
    detector: Mapped[str] = mapped_column(String(60))
    enabled: Mapped[bool | None]
    thresholds: Mapped[dict[str, Any]] = mapped_column(default=dict)
    action: Mapped[Action | None] = mapped_column(text_enum(Action))
    changed_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())
