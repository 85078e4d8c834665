"""People, their sign-in links, sessions and tokens, and the audit log."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.vocabulary import Role


class Person(Base):
    __tablename__ = "people"

    id: Mapped[Id]
    email: Mapped[str] = mapped_column(String(254), unique=True)
    """Lower case."""
    name: Mapped[str] = mapped_column(String(100))
    role: Mapped[Role] = mapped_column(text_enum(Role))
    password_hash: Mapped[str | None] = mapped_column(Text)
    """Argon2id; None until the one-time link was used."""
    created_at: Mapped[CreatedAt]
    disabled_at: Mapped[datetime | None]

    @property
    def is_active(self) -> bool:
        return self.disabled_at is None


class SignInLink(Base):
    """A one-time link: for the first start, an invitation or a forgotten password."""

    __tablename__ = "sign_in_links"

    id: Mapped[Id]
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"))
    token_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    """SHA-256."""
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]

    person: Mapped[Person] = relationship(lazy="raise")


class WebSession(Base):
    __tablename__ = "web_sessions"

    id: Mapped[Id]
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), index=True)
    token_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    csrf_token: Mapped[str] = mapped_column(String(64))
    device: Mapped[str] = mapped_column(String(60), default="", server_default="")
    """Browser and system, read from the User-Agent header, for example "Firefox on Linux"."""
    address: Mapped[str] = mapped_column(String(64), default="", server_default="")
    """The client's IP address at sign-in."""
    created_at: Mapped[CreatedAt]
    seen_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
    """Latest end. An idle session ends earlier."""

    person: Mapped[Person] = relationship(lazy="raise")


class ApiToken(Base):
    __tablename__ = "api_tokens"

    id: Mapped[Id]
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    prefix: Mapped[str] = mapped_column(String(16))
    """The first characters, so that people recognize it."""
    token_hash: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    role: Mapped[Role] = mapped_column(text_enum(Role))
    """Never more than the role of its person or of the token that created it."""
    is_read_only: Mapped[bool] = mapped_column(default=False, server_default=false())
    is_local: Mapped[bool] = mapped_column(default=False, server_default=false())
    """The token of the command line on the server's own machine. A password reset does not revoke it."""
    parent_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("api_tokens.id", ondelete="CASCADE"), index=True)
    """The token that created this one."""
    session_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("web_sessions.id", ondelete="SET NULL"), index=True)
    """The session in which it was created, while that session exists."""
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]

    person: Mapped[Person] = relationship(lazy="raise")


class AttemptLimit(Base):
    """Attempts in the current window: sign-ins of an account, of a network address, of a device."""

    __tablename__ = "attempt_limits"

    key: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    """SHA-256 of the limit's name and its subject."""
    count: Mapped[int]
    resets_at: Mapped[datetime] = mapped_column(index=True)


class AuditEvent(Base):
    """One change, who made it and when. Append-only."""

    __tablename__ = "audit_events"
    __table_args__ = (Index("ix_audit_events_subject", "subject_kind", "subject_id"),)

    id: Mapped[Id]
    at: Mapped[CreatedAt] = mapped_column(index=True)
    person_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    """None: Proctor itself."""
    action: Mapped[str] = mapped_column(String(80))
    """`environment.publish`"""
    subject_kind: Mapped[str] = mapped_column(String(40))
    subject_id: Mapped[str] = mapped_column(String(80))
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)

    person: Mapped[Person | None] = relationship(lazy="raise")
