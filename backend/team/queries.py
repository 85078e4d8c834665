"""Read people, links, sessions, tokens and the audit log."""

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from backend.domain.vocabulary import Role
from backend.errors import NotFound
from backend.team.tables import ApiToken, AuditEvent, Person, SignInLink, WebSession
from backend.web.identity import SESSION_IDLE, hash_secret
from backend.web.paging import Key, Slice, slice_of


def people(session: Session) -> Sequence[Person]:
    return session.scalars(select(Person).order_by(Person.disabled_at.is_not(None), Person.name)).all()


def get_person(session: Session, person_id: uuid.UUID, *, lock: bool = False) -> Person:
    person = session.get(Person, person_id, with_for_update={"key_share": True} if lock else None)
    if person is None:
        raise NotFound("There is no such member.")
    return person


def find_member(session: Session, text: str) -> Person:
    """Find a member by id or email address. Raises NotFound."""
    with suppress(ValueError):
        return get_person(session, uuid.UUID(text))
    if (person := find_person_by_email(session, text.strip().lower())) is None:
        raise NotFound("There is no such member.")
    return person


def find_person_by_email(session: Session, email: str) -> Person | None:
    return session.scalar(select(Person).where(Person.email == email))


def active_admins(session: Session) -> Sequence[Person]:
    """Return administrators, locked so that two requests cannot each remove one of the last two."""
    statement = select(Person).where(Person.role == Role.ADMIN, Person.disabled_at.is_(None))
    return session.scalars(statement.order_by(Person.created_at, Person.id).with_for_update(key_share=True)).all()


class LinkIsUsed(NotFound):
    """This link was already used or has expired. Ask an administrator for a new one."""


def get_usable_link(session: Session, secret: str, *, lock: bool = False) -> SignInLink:
    """Return a one-time link with its person. Reading it does not use it: chat programs open links for previews."""
    statement = (
        select(SignInLink)
        .options(selectinload(SignInLink.person))
        .where(
            SignInLink.token_hash == hash_secret(secret),
            SignInLink.used_at.is_(None),
            SignInLink.expires_at > datetime.now(UTC),
        )
    )
    link = session.scalar(statement.with_for_update() if lock else statement)
    if link is None or not link.person.is_active:
        raise LinkIsUsed
    return link


def sessions_of(session: Session, person_id: uuid.UUID) -> Sequence[WebSession]:
    """List the sessions that have not ended, most recently used first."""
    now = datetime.now(UTC)
    statement = select(WebSession).where(
        WebSession.person_id == person_id, WebSession.expires_at > now, WebSession.seen_at > now - SESSION_IDLE
    )
    return session.scalars(statement.order_by(WebSession.seen_at.desc(), WebSession.id)).all()


def tokens_of(session: Session, person_id: uuid.UUID) -> Sequence[ApiToken]:
    statement = select(ApiToken).where(ApiToken.person_id == person_id, ApiToken.revoked_at.is_(None))
    return session.scalars(statement.order_by(ApiToken.created_at.desc())).all()


def audit_events(session: Session, *, after: str | None, limit: int, subject: str = "") -> Slice[AuditEvent]:
    statement = select(AuditEvent).options(selectinload(AuditEvent.person))
    if subject:
        statement = statement.where(AuditEvent.subject_kind == subject)
    return slice_of(session, statement, (Key(AuditEvent.at), Key(AuditEvent.id)), after=after, limit=limit)
