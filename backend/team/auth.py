"""Sign in and out: one-time links, passwords, web sessions, and the end of all access."""

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from backend.core.events import access_topic, announce
from backend.core.sealing import SecretUnreadable, seal, unseal
from backend.domain.vocabulary import Role
from backend.errors import NotFound
from backend.settings import get_settings
from backend.team import attempt_limits, passwords, queries
from backend.team.attempt_limits import Limit, Usage
from backend.team.schemas import Welcome
from backend.team.tables import ApiToken, Person, SignInLink, WebSession
from backend.web.audit import audit
from backend.web.clients import Client
from backend.web.identity import SESSION_LIFETIME, Actor, hash_secret, new_secret

FIRST_ADMIN = "admin@localhost"
LINK_HOURS = 24

PER_DEVICE = Limit("sign-in of a known device", 10, timedelta(minutes=15))
"""A browser in which the member signed in before is limited by itself: others cannot lock it out."""
PER_NETWORK = Limit("sign-in from a network", 30, timedelta(minutes=5))
"""A whole office may come from one address."""
PER_ACCOUNT_AND_NETWORK = Limit("sign-in to an account from a network", 5, timedelta(minutes=5))
PER_ACCOUNT = Limit("sign-in to an account", 50, timedelta(minutes=15))
"""Of all browsers that are not known, wherever they are."""
AUDITED_REFUSALS = Limit("audited sign-in failures", 200, timedelta(hours=1))
"""Further ones are not recorded one by one, so that guessing does not fill the audit log."""
_DEVICE = "sign-in device"
_SESSIONS_PER_PERSON = 100
"""Older ones end: no script that signs in for every call fills the table."""

Transaction = Callable[[], AbstractContextManager[Session]]


class LinkIsUsed(NotFound):
    """This link was used already or is too old. Ask an administrator for a new one."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Secrets for the browser's cookies."""

    session: str
    device: str
    """Shows at the next sign-in that this member used this browser before."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """How many sessions and tokens have just been ended."""

    sessions: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A sign-in that was counted and not yet evaluated."""

    usages: list[Usage]
    person_id: uuid.UUID | None
    password_hash: str | None
    is_known_device: bool

    @property
    def refused(self) -> Usage | None:
        return next((usage for usage in self.usages if usage.is_exceeded), None)


def first_admin_link(session: Session) -> str | None:
    """A link for the very first person; None once anybody has signed in. It makes that person an administrator."""
    has_somebody = session.scalar(select(Person.id).where(Person.password_hash.is_not(None)).limit(1))
    return None if has_somebody else link_for(session, first_admin(session))


def first_admin(session: Session) -> Person:
    """The administrator of a fresh installation, made when nobody is there."""
    admins = queries.active_admins(session)
    if admins:
        return admins[0]
    person = Person(email=FIRST_ADMIN, name="Administrator", role=Role.ADMIN)
    session.add(person)
    session.flush()
    audit(session, None, "person.create", "person", person.id, email=FIRST_ADMIN, role=str(Role.ADMIN))
    return person


def link_for(session: Session, person: Person) -> str:
    """A one-time link; older unused ones of this person stop working."""
    session.execute(delete(SignInLink).where(SignInLink.person_id == person.id, SignInLink.used_at.is_(None)))
    secret = new_secret()
    expires_at = datetime.now(UTC) + timedelta(hours=LINK_HOURS)
    session.add(SignInLink(person_id=person.id, token_hash=hash_secret(secret), expires_at=expires_at))
    session.flush()
    return f"{get_settings().public_url.rstrip('/')}/links/{secret}"


def person_of_link(session: Session, secret: str) -> Person:
    """Looking does not use the link up: chat programs open links for previews."""
    link = queries.find_usable_link(session, hash_secret(secret))
    if link is None:
        raise LinkIsUsed
    return link.person


def use_link(session: Session, secret: str, form: Welcome, client: Client, *, previous: str = "") -> SignedIn:
    """Set name and password and sign in. Where there was a password before, all older sessions and tokens end."""
    link = queries.find_usable_link(session, hash_secret(secret), lock=True)
    if link is None:
        raise LinkIsUsed
    person = queries.get_person(session, link.person_id, lock=True)
    passwords.refuse_weak(form.password, person.email)
    is_reset = person.password_hash is not None
    person.name = form.name
    person.password_hash = passwords.hash_password(form.password)
    link.used_at = datetime.now(UTC)
    revoked = end_access(session, person, tokens=is_reset)
    audit(session, None, "person.use_link", "person", person.id, address=client.address, **_counts(revoked))
    return _begin_session(session, person, client, previous)


def sign_in(
    transaction: Transaction, email: str, password: str, client: Client, *, device: str = "", previous: str = ""
) -> SignedIn | None:
    """None when address or password is wrong. Raises TooManyAttempts or PasswordsAreBusy.

    `device` and `previous` are the browser's cookies: of a known device, and of the session that ends now. The attempt
    is counted and committed first, so that parallel ones cannot slip through; no transaction is open while hashing.
    """
    email = email.strip().lower()
    with transaction() as session:
        attempt = _count_attempt(session, email, client, device)
    if attempt.refused:
        raise attempt.refused.refusal()
    try:
        is_right = passwords.is_right(password, attempt.password_hash, may_wait=attempt.is_known_device)
    except passwords.PasswordsAreBusy:
        with transaction() as session:
            _give_back(session, attempt)
        raise
    with transaction() as session:
        person = _person_of(session, attempt) if is_right else None
        if person is None:
            _audit_failure(session, attempt, client)
            return None
        _give_back(session, attempt)
        if passwords.needs_rehash(person.password_hash or ""):
            person.password_hash = passwords.hash_password(password)
        audit(session, None, "person.sign_in", "person", person.id, address=client.address, device=client.device)
        return _begin_session(session, person, client, previous)


def _count_attempt(session: Session, email: str, client: Client, device: str) -> _Attempt:
    """Count it where it belongs, until one limit is exceeded: a refused attempt uses no further limit up."""
    person = queries.find_person_by_email(session, email)
    known = _known_device(device, person)
    subjects = (
        [(PER_DEVICE, known)]
        if known
        else [
            (PER_NETWORK, client.network),
            (PER_ACCOUNT_AND_NETWORK, f"{client.network} {email}"),
            (PER_ACCOUNT, email),
        ]
    )
    password_hash = person.password_hash if person and person.is_active else None
    attempt = _Attempt([], person.id if person else None, password_hash, bool(known))
    for limit, subject in subjects:
        usage = attempt_limits.take(session, limit, subject)
        attempt.usages.append(usage)
        if usage.is_exceeded:
            if usage.is_first_refusal:
                _audit_blocked(session, attempt, usage, client)
            break
    return attempt


def _known_device(device: str, person: Person | None) -> str:
    """The device's own id when this person signed in there before."""
    if not device or person is None:
        return ""
    try:
        person_id, _, device_id = unseal(device[:1000].encode(), _DEVICE).partition(" ")
    except SecretUnreadable:
        return ""
    return device_id if person_id == str(person.id) else ""


def _person_of(session: Session, attempt: _Attempt) -> Person | None:
    """Locked, and only if nothing changed while the password was verified."""
    if attempt.person_id is None:
        return None
    person = queries.get_person(session, attempt.person_id, lock=True)
    return person if person.is_active and person.password_hash == attempt.password_hash else None


def _give_back(session: Session, attempt: _Attempt) -> None:
    for usage in attempt.usages:
        attempt_limits.give_back(session, usage)


def _audit_failure(session: Session, attempt: _Attempt, client: Client) -> None:
    """Once for an account and a network while the limit's window lasts; of unknown accounts only the network."""
    if attempt.person_id is not None and attempt.usages[min(1, len(attempt.usages) - 1)].count == 1:
        _audit_refusal(session, "person.sign_in_failed", "person", attempt.person_id, address=client.address)
    elif attempt.person_id is None and attempt.usages[0].count == 1:
        _audit_refusal(session, "address.sign_in_failed", "address", client.address)


def _audit_blocked(session: Session, attempt: _Attempt, usage: Usage, client: Client) -> None:
    until = usage.resets_at.isoformat(timespec="seconds")
    if usage.limit is PER_NETWORK:
        _audit_refusal(session, "address.sign_in_blocked", "address", client.address, until=until)
    elif attempt.person_id is not None:
        scope = "everywhere but in known browsers" if usage.limit is PER_ACCOUNT else client.address
        _audit_refusal(session, "person.sign_in_blocked", "person", attempt.person_id, address=scope, until=until)


def _audit_refusal(session: Session, action: str, kind: str, subject_id: object, **detail: str) -> None:
    usage = attempt_limits.take(session, AUDITED_REFUSALS)
    if usage.is_first_refusal:
        until = usage.resets_at.isoformat(timespec="seconds")
        audit(session, None, "audit.sign_in_failures_omitted", "audit", "", until=until)
    if not usage.is_exceeded:
        audit(session, None, action, kind, subject_id, **detail)


def _begin_session(session: Session, person: Person, client: Client, previous: str) -> SignedIn:
    """Always a new session; the one that this browser had before ends."""
    if previous:
        _end_sessions(session, WebSession.token_hash == hash_secret(previous))
    secret = new_secret()
    web_session = WebSession(
        person_id=person.id,
        token_hash=hash_secret(secret),
        csrf_token=new_secret(),
        device=client.device,
        address=client.address,
        expires_at=datetime.now(UTC) + SESSION_LIFETIME,
    )
    session.add(web_session)
    session.flush()
    newest = select(WebSession.id).where(WebSession.person_id == person.id)
    newest = newest.order_by(WebSession.created_at.desc(), WebSession.id.desc()).limit(_SESSIONS_PER_PERSON)
    _end_sessions(session, (WebSession.person_id == person.id) & WebSession.id.not_in(newest))
    return SignedIn(secret, seal(f"{person.id} {new_secret()[:22]}", _DEVICE).decode())


def sign_out(session: Session, actor: Actor) -> None:
    """End this session. Tokens that were created in it stay."""
    _end_sessions(session, WebSession.id == actor.session_id)
    audit(session, actor, "person.sign_out", "person", actor.person_id)


def end_access(
    session: Session,
    person: Person,
    *,
    tokens: bool,
    local: bool = False,
    keep: uuid.UUID | None = None,
) -> Revoked:
    """End the person's sessions, except for `keep`, and with `tokens` revoke their API tokens.

    With `local` also the token of the command line on the server's own machine. The person's row must be locked.
    """
    condition = ApiToken.person_id == person.id
    if not local:
        condition = condition & ApiToken.is_local.is_(False)
    revoked = revoke_tokens(session, condition) if tokens else 0
    chosen = WebSession.person_id == person.id
    ended = _end_sessions(session, chosen & (WebSession.id != keep) if keep else chosen)
    announce(session, access_topic(person.id))
    return Revoked(ended, revoked)


def revoke_session(session: Session, actor: Actor, session_id: uuid.UUID) -> tuple[WebSession, Revoked]:
    """End one of the actor's own sessions and revoke the tokens that were created in it."""
    queries.get_person(session, actor.person_id, lock=True)
    web_session = queries.get_session_of(session, actor.person_id, session_id)
    revoked = _revoke_sessions(session, WebSession.id == session_id)
    audit(session, actor, "session.revoke", "session", session_id, device=web_session.device, **_counts(revoked))
    return web_session, revoked


def revoke_other_sessions(session: Session, actor: Actor) -> Revoked:
    """End all of the actor's sessions except for this one, and revoke the tokens that were created in them."""
    queries.get_person(session, actor.person_id, lock=True)
    others = (WebSession.person_id == actor.person_id) & (WebSession.id != actor.session_id)
    revoked = _revoke_sessions(session, others)
    audit(session, actor, "session.revoke_others", "person", actor.person_id, **_counts(revoked))
    return revoked


def _revoke_sessions(session: Session, condition: ColumnElement[bool]) -> Revoked:
    tokens = revoke_tokens(session, ApiToken.session_id.in_(select(WebSession.id).where(condition)))
    return Revoked(_end_sessions(session, condition), tokens)


def _end_sessions(session: Session, condition: ColumnElement[bool]) -> int:
    """Delete the rows and wake the streams of their people."""
    people = session.scalars(delete(WebSession).where(condition).returning(WebSession.person_id)).all()
    announce(session, *(access_topic(person_id) for person_id in set(people)))
    return len(people)


def revoke_tokens(session: Session, condition: ColumnElement[bool]) -> int:
    """Revoke these tokens and all that were created with them. The person's row must be locked."""
    tree = select(ApiToken.id).where(condition).cte("tree", recursive=True)
    tree = tree.union(select(ApiToken.id).join(tree, ApiToken.parent_id == tree.c.id))
    statement = (
        update(ApiToken)
        .where(ApiToken.id.in_(select(tree.c.id)), ApiToken.revoked_at.is_(None))
        .values(revoked_at=datetime.now(UTC))
        .returning(ApiToken.person_id)
    )
    people = session.scalars(statement).all()
    announce(session, *(access_topic(person_id) for person_id in set(people)))
    return len(people)


def _counts(revoked: Revoked) -> dict[str, int]:
    return {"sessions": revoked.sessions, "tokens": revoked.tokens}
