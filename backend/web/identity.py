"""Who sends a request: a member with a session cookie or an API token, from a browser or a script.

Cookies and tokens are stored only as hashes.
"""

import hashlib
import ipaddress
import secrets
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from fastapi import Request
from sqlalchemy import Select, Update, and_, bindparam, event, func, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session, contains_eager

from backend.deletions.tables import Deletion
from backend.domain.projects.access import ProjectAccess, access_of
from backend.domain.vocabulary import Role
from backend.errors import NotFound
from backend.notifications.tables import Notice, NoticeRead
from backend.projects.tables import Project, ProjectMember
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


_PROJECTS = (  # a column of the same statement, so that no page needs another one
    select(
        func.jsonb_agg(
            aggregate_order_by(
                func.jsonb_build_array(Project.id, Project.name, Project.is_restricted, ProjectMember.role),
                Project.name,
            )
        )
    )
    .outerjoin(ProjectMember, and_(ProjectMember.project_id == Project.id, ProjectMember.person_id == Person.id))
    .correlate(Person)
    .scalar_subquery()
)
_HAS_DELETIONS = select(Deletion.id).exists()


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
    project_id: uuid.UUID | None = None
    """The project that the member chose to work in. None: all."""
    hides_deleted: bool = True
    """Whether anything is deleted that this request must not find."""
    access: ProjectAccess = field(default_factory=lambda: ProjectAccess(Role.VIEWER), hash=False)
    """The roles in all projects. `role` is the one in the project of the request's subject."""

    def may(self, role: Role | str) -> bool:
        return self.role.includes(Role(role))

    def may_create(self, role: Role | str) -> bool:
        """Whether the role holds where new environments, policies and runs of this person belong."""
        role_here = self.access.role_in(self.project_id) if self.project_id else self.access.highest
        return role_here is not None and role_here.includes(Role(role))

    def within(self, project_id: uuid.UUID | None) -> "Actor":
        """Return the actor with the role in a project. Raises NotFound if the project is hidden."""
        if project_id is None or self.access.is_uniform:
            return self
        if (role := self.access.role_in(project_id)) is None:
            raise NotFound
        return replace(self, role=role)


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
def _session_and_unread_count() -> Select[WebSession, int, Any]:
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
        .where(Notice.created_at >= since, Notice.is_for(Person.id), ~is_read)
        .correlate(Person)
        .scalar_subquery()
    )
    return (
        select(WebSession, unread_count, _PROJECTS, _HAS_DELETIONS)
        .join(WebSession.person)
        .options(contains_eager(WebSession.person))
        .where(WebSession.token_hash == bindparam("token_hash"))
    )


def _actor_of_cookie(session: Session, cookie: str, *, is_use: bool) -> Actor | None:
    found = session.execute(_session_and_unread_count(), {"token_hash": hash_secret(cookie)}).one_or_none()
    if found is None:
        return None
    web_session, unread, projects, hides_deleted = found
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
        hides_deleted=hides_deleted,
        access=_access_of(person.role, Role.ADMIN, projects),
    )


def _actor_of_token(session: Session, token: str, *, is_use: bool) -> Actor | None:
    row = session.execute(
        select(ApiToken, _PROJECTS, _HAS_DELETIONS)
        .join(ApiToken.person)
        .options(contains_eager(ApiToken.person))
        .where(ApiToken.token_hash == hash_secret(token), ApiToken.revoked_at.is_(None))
    ).one_or_none()
    if row is None:
        return None
    found, projects, hides_deleted = row
    now = datetime.now(UTC)
    if not found.person.is_active or (found.expires_at is not None and found.expires_at <= now):
        return None
    if is_use and (found.used_at is None or now - found.used_at > _SEEN_EVERY):
        _record_at_commit(session, update(ApiToken).where(ApiToken.id == found.id).values(used_at=now))
    access = _access_of(found.person.role, found.role, projects)
    return Actor(
        found.person.id,
        access.team_role,
        name=found.person.name,
        is_token=True,
        token_id=found.id,
        is_read_only=found.is_read_only,
        valid_until=found.expires_at,
        hides_deleted=hides_deleted,
        access=access,
    )


def access_of_person(session: Session, person_id: uuid.UUID) -> ProjectAccess | None:
    """Return what a person may do in which project, or None if they are disabled."""
    row = session.execute(select(Person.role, _PROJECTS).where(Person.id == person_id, Person.disabled_at.is_(None)))
    found = row.one_or_none()
    return _access_of(found[0], Role.ADMIN, found[1]) if found else None


def _access_of(role: Role, limit: Role, projects: list[tuple[str, str, bool, str | None]] | None) -> ProjectAccess:
    rows = [(uuid.UUID(key), name, closed, Role(own) if own else None) for key, name, closed, own in projects or ()]
    return access_of(role, limit, rows)


def _record_at_commit(session: Session, use: Update) -> None:
    """Record a use as the request's last statement, so that its row lock never waits for a revocation."""
    use = use.execution_options(synchronize_session=False)
    event.listen(session, "before_commit", lambda session: session.execute(use), once=True)
