"""Who sends a request: a member with a session cookie or an API token, from a browser or a script.

Cookies and tokens are stored only as hashes.
"""

import hashlib
import ipaddress
import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from fastapi import Request
from sqlalchemy import Select, Update, bindparam, event, func, select, update
from sqlalchemy.orm import Session, contains_eager

from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import Role
from backend.notifications.tables import Notice, NoticeRead
from backend.team.tables import ApiToken, Person, WebSession
from backend.web.audit import Requester

SESSION_COOKIE = "proctor_session"
TOKEN_PREFIX = "pt_"
"""Start of every API token, so that secret scanners find leaked ones."""
UNREAD_DAYS = 30
"""Older notices no longer count as unread."""
SESSION_LIFETIME = timedelta(days=60)
"""From sign-in until the password is needed again."""
SESSION_IDLE = timedelta(days=14)
"""A session that is not used for this long ends earlier."""
_SEEN_EVERY = timedelta(minutes=1)
"""Precision of the recorded last use. Finer would write on every request."""
_BROWSERS = (
    *(("Edg", "Edge"), ("OPR/", "Opera"), ("SamsungBrowser", "Samsung Internet"), ("Firefox", "Firefox")),
    *(("FxiOS", "Firefox"), ("CriOS", "Chrome"), ("HeadlessChrome", "Chrome"), ("Chrome", "Chrome")),
    *(("Safari", "Safari"), ("curl/", "curl"), ("python-", "Python")),
)
"""Part of a User-Agent and the browser. Most browsers also name their ancestors, so specific names come first."""
_SYSTEMS = (
    *(("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows")),
    *(("Mac OS X", "macOS"), ("CrOS", "ChromeOS"), ("Linux", "Linux")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor(Requester):
    """The member on whose behalf a request acts."""

    name: str
    csrf_token: str = ""
    """Empty for API tokens, which browsers never send on their own."""
    unread: int = 0
    """Unread notices of the last UNREAD_DAYS. 0 for API tokens."""
    session_id: uuid.UUID | None = None
    """The web session. None for API tokens."""
    token_id: uuid.UUID | None = None
    is_read_only: bool = False
    valid_until: datetime | None = None
    """When the session or token ends if it is not used. None: never."""

    def may(self, role: Role | str) -> bool:
        return self.role.includes(Role(role))


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The browser or script behind a request."""

    address: str
    """An IP address, or `unknown` for a Unix socket."""
    device: str
    """For example "Firefox on Linux"."""

    @property
    def network(self) -> str:
        """What rate limits count as one client: an IPv4 address, or the /64 network of an IPv6 address."""
        try:
            address = ipaddress.ip_address(self.address.partition("%")[0])
        except ValueError:
            return self.address
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is None:
                return str(ipaddress.ip_network((address, 64), strict=False))
            address = address.ipv4_mapped
        return str(address)


def client_of(request: Request) -> ClientInfo:
    """Describe the client by names from the lists above: nothing of its User-Agent is stored or shown.

    The address is the socket's. The server replaces it by X-Forwarded-For only for trusted proxies.
    """
    user_agent = request.headers.get("user-agent", "")[:500]
    browser = next((name for part, name in _BROWSERS if part in user_agent), "Unknown browser")
    system = next((name for part, name in _SYSTEMS if part in user_agent), "")
    address = request.client.host if request.client else "unknown"
    return ClientInfo(address[:64], f"{browser} on {system}" if system else browser)


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """Plain SHA-256 is enough for 256 random bits; argon2 is for passwords."""
    return hashlib.sha256(secret.encode()).digest()


def find_actor(session: Session, request: Request, *, is_use: bool | None = None) -> Actor | None:
    """Find the signed-in member. A bearer token wins over a cookie.

    `is_use`: whether this counts as a use of the session or token. Default: unless an open page asks in the
    background, because a forgotten tab must not keep a session alive.
    """
    if is_use is None:
        is_use = not request.url.path.endswith("/events") and request.url.path != "/notices/bell"
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return _actor_of_token(session, token.strip(), is_use=is_use)
    cookie = request.cookies.get(SESSION_COOKIE)
    return _actor_of_cookie(session, cookie, is_use=is_use) if cookie else None


@cache
def _session_and_unread_count() -> Select[WebSession, int]:
    """Built once: to build it takes as long as to execute it, and every request does."""
    is_read = (
        select(NoticeRead.notice_id)
        .where(NoticeRead.person_id == Person.id, NoticeRead.notice_id == Notice.id)
        .correlate(Person, Notice)
        .exists()
    )
    since = func.greatest(Person.created_at, func.now() - timedelta(days=UNREAD_DAYS))
    unread_count = (  # a column of the same statement, so that no page needs another one
        select(func.count(Notice.id))
        .where(Notice.created_at >= since, Notice.kind != NoticeKind.TEST, ~is_read)
        .correlate(Person)
        .scalar_subquery()
    )
    return (
        select(WebSession, unread_count)
        .join(WebSession.person)
        .options(contains_eager(WebSession.person))
        .where(WebSession.token_hash == bindparam("token_hash"))
    )


def _actor_of_cookie(session: Session, cookie: str, *, is_use: bool) -> Actor | None:
    found = session.execute(_session_and_unread_count(), {"token_hash": hash_secret(cookie)}).one_or_none()
    if found is None:
        return None
    web_session, unread = found
    person, now = web_session.person, datetime.now(UTC)
    valid_until = min(web_session.expires_at, web_session.seen_at + SESSION_IDLE)
    if valid_until <= now or not person.is_active:
        return None
    if is_use and now - web_session.seen_at > _SEEN_EVERY:
        _record_at_commit(session, update(WebSession).where(WebSession.id == web_session.id).values(seen_at=now))
    return Actor(
        person.id,
        person.role,
        name=person.name,
        csrf_token=web_session.csrf_token,
        is_token=False,
        unread=unread,
        session_id=web_session.id,
        valid_until=valid_until,
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
        min(found.role, found.person.role, key=list(Role).index),
        name=found.person.name,
        is_token=True,
        token_id=found.id,
        is_read_only=found.is_read_only,
        valid_until=found.expires_at,
    )


def _record_at_commit(session: Session, use: Update) -> None:
    """Record a use as the request's last statement, so that its row lock never waits for a revocation."""
    use = use.execution_options(synchronize_session=False)
    event.listen(session, "before_commit", lambda session: session.execute(use), once=True)
