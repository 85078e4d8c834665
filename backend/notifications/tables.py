"""Notices, who has read them, where they are sent, and each delivery."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    and_,
    any_,
    func,
    or_,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.notifications.notices import (
    HIDDEN_KINDS,
    DeliveryStatus,
    DestinationKind,
    EmailFrequency,
    NoticeKind,
)

if TYPE_CHECKING:
    from backend.runs.tables import Run
    from backend.team.tables import Person


class Notice(Base):
    """News about one event, written in the transaction of that event."""

    __tablename__ = "notices"
    __table_args__ = (Index("ix_notices_created_at_id", "created_at", "id"),)

    id: Mapped[Id]
    kind: Mapped[NoticeKind] = mapped_column(text_enum(NoticeKind))
    title: Mapped[str] = mapped_column(String(200))
    text: Mapped[str] = mapped_column(Text)
    path: Mapped[str] = mapped_column(String(500))
    """Path of the page about it, such as `/runs/…`."""
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    person_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), index=True)
    """The only recipient. Null: all members."""
    created_at: Mapped[CreatedAt]

    run: Mapped["Run | None"] = relationship(lazy="raise")

    @classmethod
    def is_for(cls, person_id: uuid.UUID | InstrumentedAttribute[uuid.UUID]) -> ColumnElement[bool]:
        """Whether a member finds it among the notices: to all members or to this one, and not of a hidden kind."""
        is_muted = (
            select(NoticePreference.person_id)
            .where(NoticePreference.person_id == person_id, cls.kind == any_(NoticePreference.muted))
            .correlate_except(NoticePreference)
            .exists()
        )
        return and_(or_(cls.person_id.is_(None), cls.person_id == person_id), cls.kind.not_in(HIDDEN_KINDS), ~is_muted)


class NoticeRead(Base):
    __tablename__ = "notice_reads"

    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), primary_key=True)
    notice_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("notices.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    read_at: Mapped[datetime] = mapped_column(server_default=func.now())


class NoticePreference(Base):
    """The preferences of a member. No row: everything is shown in Proctor, and nothing is sent by email."""

    __tablename__ = "notice_preferences"

    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), primary_key=True)
    muted: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """Kinds that are not shown in Proctor."""
    email: Mapped[EmailFrequency] = mapped_column(text_enum(EmailFrequency), default=EmailFrequency.NEVER)
    email_kinds: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """Kinds sent by email. Empty: all."""
    digest_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """Until when notices were summed up in a message."""


class NoticeDestination(Base):
    """A webhook or an email server that notices are sent to."""

    __tablename__ = "notice_destinations"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100), unique=True)
    kind: Mapped[DestinationKind] = mapped_column(text_enum(DestinationKind))
    kinds: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """Kinds of notices sent there. Empty: all."""
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """webhook: {url, format}. email: {host, port, security, user, sender, recipients}."""
    secret: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Signing secret or password, encrypted and bound to the address. Write-only."""
    is_enabled: Mapped[bool] = mapped_column(default=True, server_default=true())
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]

    @property
    def has_secret(self) -> bool:
        return self.secret is not None

    @property
    def address(self) -> str:
        """The webhook's URL, or recipients and mail server."""
        if self.kind is DestinationKind.WEBHOOK:
            return str(self.configuration["url"])
        return f"{', '.join(self.configuration['recipients'])} via {self.configuration['host']}"


class NoticeDelivery(Base):
    """One notice on its way to one destination."""

    __tablename__ = "notice_deliveries"
    __table_args__ = (
        UniqueConstraint("notice_id", "destination_id", "person_id", postgresql_nulls_not_distinct=True),
        Index("ix_notice_deliveries_due", "next_at", postgresql_where=text("status = 'waiting'")),
        Index("ix_notice_deliveries_created_at_id", "created_at", "id"),
    )

    id: Mapped[Id]
    notice_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("notices.id", ondelete="CASCADE"))
    destination_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("notice_destinations.id", ondelete="CASCADE"), index=True
    )
    person_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), index=True)
    """The only recipient of an email to a member. Null: the recipients of the destination."""
    status: Mapped[DeliveryStatus] = mapped_column(text_enum(DeliveryStatus), default=DeliveryStatus.WAITING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime] = mapped_column(server_default=func.now())
    """When another job is queued for it if it is still waiting."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why the last attempt failed."""
    created_at: Mapped[CreatedAt]
    delivered_at: Mapped[datetime | None]

    notice: Mapped[Notice] = relationship(lazy="raise")
    destination: Mapped[NoticeDestination] = relationship(lazy="raise")
    person: Mapped["Person | None"] = relationship(lazy="raise")
