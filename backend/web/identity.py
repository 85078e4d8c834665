"""Who is asking: a browser's session cookie or a script's bearer token, both stored only as hashes."""

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fastapi import Request
from sqlalchemy import ScalarSelect, Update, event, func, select, update
from sqlalchemy.orm import Session, contains_eager

from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import Role
from backend.notifications.tables import Notice, NoticeRead
from backend.team.tables import ApiToken, Person, WebSession

SESSION_COOKIE = "proctor_session"
TOKEN_PREFIX = "pt_"
"""Every API token starts so, which lets secret scanners find leaked ones."""
UNREAD_DAYS = 30
"""Older notices are not counted any more, read or not."""
SESSION_LIFETIME = timedelta(days=60)
"""From sign-in; then the password is needed again."""
SESSION_IDLE = timedelta(days=14)
"""A session that nobody uses for this long ends earlier."""
_SEEN_EVERY = timedelta(minutes=1)
"""How exactly the last use is recorded; finer would write on every request."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The member on whose behalf a request acts."""

    person_id: uuid.UUID
    name: str
    role: Role
    """Of a token: its own role, never more than its person's."""
    csrf_token: str
    """Empty for API tokens, which no browser sends by itself."""
    is_token: bool
    unread: int = 0
    """Notices that a signed-in person has not read, of the last UNREAD_DAYS."""
    session_id: uuid.UUID | None = None
    """The web session; None for API tokens."""
    token_id: uuid.UUID | None = None
    is_read_only: bool = False
    """A token that may only read."""
    valid_until: datetime | None = None
    """When the session or token ends if nobody uses it; None: never."""

    def may(self, role: Role | str) -> bool:
        return self.role.includes(Role(role))


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """Plain SHA-256 is enough for 256 random bits; argon2 is for passwords."""
    return hashlib.sha256(secret.encode()).digest()


def find_actor(session: Session, request: Request, *, is_use: bool | None = None) -> Actor | None:
    """The signed-in member, or None. A bearer token wins over a cookie.

    `is_use`: whether this counts as a use of the session or token. Default: unless the page asks in the background.
    """
    is_use = not _is_background(request) if is_use is None else is_use
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return _actor_of_token(session, token.strip(), is_use=is_use)
    cookie = request.cookies.get(SESSION_COOKIE)
    return _actor_of_cookie(session, cookie, is_use=is_use) if cookie else None


def _is_background(request: Request) -> bool:
    """Does an open page ask without its person? A forgotten tab must not keep a session alive."""
    return request.url.path.endswith("/events") or request.url.path == "/notices/bell"


def _actor_of_cookie(session: Session, cookie: str, *, is_use: bool) -> Actor | None:
    found = session.execute(
        select(WebSession, _unread())
        .join(WebSession.person)
        .options(contains_eager(WebSession.person))
        .where(WebSession.token_hash == hash_secret(cookie))
    ).one_or_none()
    if found is None:
        return None
    web_session, unread = found
    now = datetime.now(UTC)
    valid_until = min(web_session.expires_at, web_session.seen_at + SESSION_IDLE)
    if valid_until <= now or not web_session.person.is_active:
        return None
    if is_use and now - web_session.seen_at > _SEEN_EVERY:
        seen = update(WebSession).where(WebSession.id == web_session.id).values(seen_at=now)
        _record_at_commit(session, seen)
    person = web_session.person
    return Actor(
        person.id,
        person.name,
        person.role,
        web_session.csrf_token,
        is_token=False,
        unread=unread,
        session_id=web_session.id,
        valid_until=valid_until,
    )


def _record_at_commit(session: Session, use: Update) -> None:
    """Record a use as the request's last statement: its row lock must not wait for one that a revocation holds."""

    def record(session: Session) -> None:
        session.execute(use.execution_options(synchronize_session=False))

    event.listen(session, "before_commit", record, once=True)


def _unread() -> ScalarSelect[int]:
    """How many notices the person of the session has not read: a column beside it, so that no page asks once more."""
    is_read = (
        select(NoticeRead.notice_id)
        .where(NoticeRead.person_id == Person.id, NoticeRead.notice_id == Notice.id)
        .correlate(Person, Notice)
        .exists()
    )
    since = func.greatest(Person.created_at, func.now() - timedelta(days=UNREAD_DAYS))
    return (
        select(func.count(Notice.id))
        .where(Notice.created_at >= since, Notice.kind != NoticeKind.TEST, ~is_read)
        .correlate(Person)
        .scalar_subquery()
    )


def _actor_of_token(session: Session, token: str, *, is_use: bool) -> Actor | None:
    found = session.scalar(
        select(ApiToken)
        .join(ApiToken.person)
        .options(contains_eager(ApiToken.person))
        .where(ApiToken.token_hash == hash_secret(token), ApiToken.revoked_at.is_(None))
    )
    now = datetime.now(UTC)
    if found is None or not found.person.is_active or (found.expires_at is not None and found.expires_at <= now):
        return None
    if is_use and (found.used_at is None or now - found.used_at > _SEEN_EVERY):
        _record_at_commit(session, update(ApiToken).where(ApiToken.id == found.id).values(used_at=now))
    return Actor(
        found.person.id,
        found.person.name,
        min(found.role, found.person.role, key=lambda each: each.rank),
        "",
        is_token=True,
        token_id=found.id,
        is_read_only=found.is_read_only,
        valid_until=found.expires_at,
    )
