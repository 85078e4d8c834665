"""Sign-in and sign-out: one-time links, passwords, web sessions, and the revocation of access."""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from backend.core.events import announce, topic_of
from backend.core.sealing import SecretUnreadable, seal, unseal
from backend.domain.vocabulary import Role
from backend.errors import NotFound
from backend.settings import get_settings
from backend.team import passwords, queries
from backend.team.passwords import Limit, LimitedAttempt, count_attempt, uncount_attempt
from backend.team.schemas import RevokedAccess, RevokedSession, Welcome
from backend.team.tables import ApiToken, Person, SignInLink, WebSession
from backend.web.audit import audit
from backend.web.identity import SESSION_LIFETIME, Actor, ClientInfo, hash_secret, new_secret

FIRST_ADMIN = "admin@localhost"

PER_DEVICE = Limit("sign-in of a known device", 10, timedelta(minutes=15))
"""A browser in which the member signed in before has its own limit, so that others cannot lock it out."""
PER_NETWORK = Limit("sign-in from a network", 30, timedelta(minutes=5))
"""A whole office may share one address."""
PER_ACCOUNT_AND_NETWORK = Limit("sign-in to an account from a network", 5, timedelta(minutes=5))
PER_ACCOUNT = Limit("sign-in to an account", 50, timedelta(minutes=15))
"""All unknown browsers together, on any network."""
AUDITED_REFUSALS = Limit("audited sign-in failures", 200, timedelta(hours=1))
"""Further ones are not recorded individually, so that guessing does not fill the audit log."""
_DEVICE = "sign-in device"
_SESSIONS_PER_PERSON = 100
"""Older ones end, so that no script that signs in for every call fills the table."""

Transaction = Callable[[], AbstractContextManager[Session]]


@dataclass(frozen=True, slots=True)
class BrowserSecrets:
    """Secrets for the cookies of a browser that signed in."""

    session: str
    device: str
    """Identifies the browser at the next sign-in of this member."""
    home: str
    """The page that opens first: a reviewer's is the queue."""


def first_admin_link(session: Session) -> str | None:
    """Return a link that makes the first person an administrator; None once anyone has signed in."""
    has_signed_in = session.scalar(select(Person.id).where(Person.password_hash.is_not(None)).limit(1))
    return None if has_signed_in else link_for(session, first_admin(session))


def first_admin(session: Session) -> Person:
    """Return the first administrator. A new installation gets one."""
    if admins := queries.active_admins(session):
        return admins[0]
    person = Person(email=FIRST_ADMIN, name="Administrator", role=Role.ADMIN)
    session.add(person)
    session.flush()
    audit(session, None, "person.create", "person", person.id, email=FIRST_ADMIN, role=str(Role.ADMIN))
    return person


def link_for(session: Session, person: Person) -> str:
    """Create a one-time link. Older unused links of this person stop working."""
    session.execute(delete(SignInLink).where(SignInLink.person_id == person.id, SignInLink.used_at.is_(None)))
    secret = new_secret()
    expires_at = datetime.now(UTC) + timedelta(hours=24)
    session.add(SignInLink(person_id=person.id, token_hash=hash_secret(secret), expires_at=expires_at))
    session.flush()
    return f"{get_settings().public_url.rstrip('/')}/links/{secret}"


def use_link(session: Session, secret: str, form: Welcome, client: ClientInfo, *, previous: str = "") -> BrowserSecrets:
    """Set name and password and sign in. If there was a password before, all older sessions and tokens end."""
    link = queries.get_usable_link(session, secret, lock=True)
    person = queries.get_person(session, link.person_id, lock=True)
    passwords.refuse_weak(form.password, person.email)
    is_reset = person.password_hash is not None
    person.name = form.name
    person.password_hash = passwords.hash_password(form.password)
    link.used_at = datetime.now(UTC)
    revoked = end_access(session, person, tokens=is_reset)
    audit(session, None, "person.use_link", "person", person.id, address=client.address, **revoked.model_dump())
    return _begin_session(session, person, client, previous)


def sign_in(
    transaction: Transaction, email: str, password: str, client: ClientInfo, *, device: str = "", previous: str = ""
) -> BrowserSecrets | None:
    """Sign in; None if address or password is wrong. Raises TooManyAttempts or PasswordsAreBusy.

    `device` and `previous` are the browser's cookies: of a known device, and of the session that ends now. The attempt
    is counted and committed first, so that parallel ones cannot slip through; no transaction is open while hashing.
    """
    email = email.strip().lower()
    with transaction() as session:
        person = queries.find_person_by_email(session, email)
        known_device = ""  # the device's own id, if this person signed in there before
        if device and person:
            with suppress(SecretUnreadable):
                person_id_there, _, device_id = unseal(device[:1000].encode(), _DEVICE).partition(" ")
                known_device = device_id if person_id_there == str(person.id) else ""
        usages = _count(session, email, person, known_device, client)
        person_id = person.id if person else None
        password_hash = person.password_hash if person and person.is_active else None
    if usages[-1].is_exceeded:
        raise usages[-1].refusal()
    try:
        is_right = passwords.is_right(password, password_hash, may_wait=bool(known_device))
    except passwords.PasswordsAreBusy:
        with transaction() as session:
            for usage in usages:
                uncount_attempt(session, usage)
        raise
    with transaction() as session:
        person = queries.get_person(session, person_id, lock=True) if is_right and person_id else None
        if person is None or not person.is_active or person.password_hash != password_hash:
            # recorded once per account and network in the limit's window; for unknown accounts once per network
            if person_id is not None and usages[min(1, len(usages) - 1)].count == 1:
                _audit_refusal(session, "person.sign_in_failed", "person", person_id, address=client.address)
            elif person_id is None and usages[0].count == 1:
                _audit_refusal(session, "address.sign_in_failed", "address", client.address)
            return None
        for usage in usages:
            uncount_attempt(session, usage)
        if passwords.hasher.check_needs_rehash(person.password_hash or ""):
            person.password_hash = passwords.hash_password(password)
        audit(session, None, "person.sign_in", "person", person.id, address=client.address, device=client.device)
        return _begin_session(session, person, client, previous)


def _count(
    session: Session, email: str, person: Person | None, known_device: str, client: ClientInfo
) -> list[LimitedAttempt]:
    """Count an attempt by its limits until one is exceeded: a refused attempt uses up no further limit."""
    subjects = (
        [(PER_DEVICE, known_device)]
        if known_device
        else [
            (PER_NETWORK, client.network),
            (PER_ACCOUNT_AND_NETWORK, f"{client.network} {email}"),
            (PER_ACCOUNT, email),
        ]
    )
    usages = []
    for limit, subject in subjects:
        usage = count_attempt(session, limit, subject)
        usages.append(usage)
        if not usage.is_exceeded:
            continue
        until = usage.resets_at.isoformat(timespec="seconds")
        if usage.is_first_refusal and limit is PER_NETWORK:
            _audit_refusal(session, "address.sign_in_blocked", "address", client.address, until=until)
        elif usage.is_first_refusal and person is not None:
            scope = "everywhere but in known browsers" if limit is PER_ACCOUNT else client.address
            _audit_refusal(session, "person.sign_in_blocked", "person", person.id, address=scope, until=until)
        break
    return usages


def _audit_refusal(session: Session, action: str, kind: str, subject_id: object, **detail: str) -> None:
    usage = count_attempt(session, AUDITED_REFUSALS)
    if usage.is_first_refusal:
        until = usage.resets_at.isoformat(timespec="seconds")
        audit(session, None, "audit.sign_in_failures_omitted", "audit", "", until=until)
    if not usage.is_exceeded:
        audit(session, None, action, kind, subject_id, **detail)


def _begin_session(session: Session, person: Person, client: ClientInfo, previous: str) -> BrowserSecrets:
    """Start a new session and end this browser's previous one."""
    if previous:
        _end_sessions(session, WebSession.token_hash == hash_secret(previous))
    secret = new_secret()
    session.add(
        WebSession(
            person_id=person.id,
            token_hash=hash_secret(secret),
            csrf_token=new_secret(),
            device=client.device,
            address=client.address,
            expires_at=datetime.now(UTC) + SESSION_LIFETIME,
        )
    )
    session.flush()
    newest = select(WebSession.id).where(WebSession.person_id == person.id)
    newest = newest.order_by(WebSession.created_at.desc(), WebSession.id.desc()).limit(_SESSIONS_PER_PERSON)
    _end_sessions(session, (WebSession.person_id == person.id) & WebSession.id.not_in(newest))
    home = "/review" if person.role is Role.REVIEWER else "/"
    return BrowserSecrets(secret, seal(f"{person.id} {new_secret()[:22]}", _DEVICE).decode(), home)


def sign_out(session: Session, actor: Actor) -> None:
    """End this session. Tokens that were created in it stay."""
    _end_sessions(session, WebSession.id == actor.session_id)
    audit(session, actor, "person.sign_out", "person", actor.person_id)


def end_access(
    session: Session, person: Person, *, tokens: bool, local: bool = False, keep: uuid.UUID | None = None
) -> RevokedAccess:
    """End a person's sessions except for `keep`, and with `tokens` revoke their API tokens.

    With `local`, also the token of the command line on the server's own machine. The person's row must be locked.
    """
    own_tokens = ApiToken.person_id == person.id
    if not local:
        own_tokens &= ApiToken.is_local.is_(False)
    sessions = WebSession.person_id == person.id
    if keep:
        sessions &= WebSession.id != keep
    revoked = revoke_tokens(session, own_tokens) if tokens else 0
    ended = _end_sessions(session, sessions)
    announce(session, topic_of("access", person.id))
    return RevokedAccess(sessions=ended, tokens=revoked)


def revoke_sessions(session: Session, actor: Actor, session_id: uuid.UUID | None = None) -> RevokedSession:
    """End one of the actor's own sessions, or all except for this one. Also revoke the tokens created in them."""
    queries.get_person(session, actor.person_id, lock=True)
    own = WebSession.person_id == actor.person_id
    web_session = session.scalar(select(WebSession).where(own, WebSession.id == session_id)) if session_id else None
    if session_id and web_session is None:
        raise NotFound("This session does not exist or has ended.")
    ends = own & (WebSession.id == session_id if session_id else WebSession.id != actor.session_id)
    tokens = revoke_tokens(session, ApiToken.session_id.in_(select(WebSession.id).where(ends)))
    counts = {"sessions": _end_sessions(session, ends), "tokens": tokens}
    if web_session:
        audit(session, actor, "session.revoke", "session", session_id, device=web_session.device, **counts)
    else:
        audit(session, actor, "session.revoke_others", "person", actor.person_id, **counts)
    return RevokedSession(device=(web_session and web_session.device) or "an unknown browser", **counts)


def _end_sessions(session: Session, condition: ColumnElement[bool]) -> int:
    """Delete the rows and wake the streams of their people."""
    people = session.scalars(delete(WebSession).where(condition).returning(WebSession.person_id)).all()
    announce(session, *(topic_of("access", person_id) for person_id in set(people)))
    return len(people)


def revoke_tokens(session: Session, condition: ColumnElement[bool]) -> int:
    """Revoke tokens and all tokens that were created with them. The person's row must be locked."""
    tree = select(ApiToken.id).where(condition).cte("tree", recursive=True)
    tree = tree.union(select(ApiToken.id).join(tree, ApiToken.parent_id == tree.c.id))
    statement = (
        update(ApiToken)
        .where(ApiToken.id.in_(select(tree.c.id)), ApiToken.revoked_at.is_(None))
        .values(revoked_at=datetime.now(UTC))
        .returning(ApiToken.person_id)
    )
    people = session.scalars(statement).all()
    announce(session, *(topic_of("access", person_id) for person_id in set(people)))
    return len(people)
