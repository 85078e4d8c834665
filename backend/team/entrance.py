"""Coming in: one-time links, passwords, web sessions and the limit on wrong attempts."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from backend.db.models import Person, SignInAttempt, SignInLink, WebSession
from backend.domain.vocabulary import Role
from backend.errors import NotFound, TooManyRequests
from backend.settings import get_settings
from backend.team import passwords, queries
from backend.team.forms import Welcome
from backend.web.audit import audit
from backend.web.identity import Actor, hash_secret, new_secret

FIRST_ADMIN = "admin@localhost"
LINK_HOURS = 24
SESSION_DAYS = 14
ATTEMPTS_WINDOW = timedelta(minutes=5)
ATTEMPTS_PER_PERSON = 5
ATTEMPTS_PER_ADDRESS = 30
"""Higher: a whole office may come from one address."""


class LinkIsUsed(NotFound):
    """This link was used already or is too old. Ask an administrator for a new one."""


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


def use_link(session: Session, secret: str, form: Welcome) -> str:
    """Set name and password, end all older sessions, and sign in: the new session's secret."""
    link = queries.find_usable_link(session, hash_secret(secret), lock=True)
    if link is None:
        raise LinkIsUsed
    person = link.person
    passwords.refuse_weak(form.password, person.email)
    person.name = form.name
    person.password_hash = passwords.hash_password(form.password)
    link.used_at = datetime.now(UTC)
    end_sessions(session, person)
    audit(session, None, "person.use_link", "person", person.id)
    return begin_session(session, person)


def sign_in(session: Session, email: str, password: str, address: str) -> str | None:
    """The new session's secret; None when address or password is wrong, which is counted."""
    email = email.strip().lower()
    _refuse_too_many(session, f"person:{email}"[:300], f"address:{address}")
    person = queries.find_person_by_email(session, email)
    if not passwords.is_right(password, person.password_hash if person else None) or not person or not person.is_active:
        session.add_all([SignInAttempt(key=f"person:{email}"[:300]), SignInAttempt(key=f"address:{address}")])
        return None
    if person.password_hash and passwords.needs_rehash(person.password_hash):
        person.password_hash = passwords.hash_password(password)
    audit(session, None, "person.sign_in", "person", person.id, address=address)
    return begin_session(session, person)


def _refuse_too_many(session: Session, person_key: str, address_key: str) -> None:
    since = datetime.now(UTC) - ATTEMPTS_WINDOW
    is_too_many = (
        queries.failures_since(session, person_key, since) >= ATTEMPTS_PER_PERSON
        or queries.failures_since(session, address_key, since) >= ATTEMPTS_PER_ADDRESS
    )
    if is_too_many:
        raise TooManyRequests("Too many wrong attempts. Wait five minutes and try again.")


def begin_session(session: Session, person: Person) -> str:
    secret = new_secret()
    session.add(
        WebSession(
            person_id=person.id,
            token_hash=hash_secret(secret),
            csrf_token=new_secret(),
            expires_at=datetime.now(UTC) + timedelta(days=SESSION_DAYS),
        )
    )
    session.flush()
    return secret


def sign_out(session: Session, actor: Actor, secret: str) -> None:
    session.execute(delete(WebSession).where(WebSession.token_hash == hash_secret(secret)))
    audit(session, actor, "person.sign_out", "person", actor.person_id)


def end_sessions(session: Session, person: Person, *, keep: str = "") -> None:
    """Sign the person out everywhere, but for the session with the secret `keep`."""
    statement = delete(WebSession).where(WebSession.person_id == person.id)
    session.execute(statement.where(WebSession.token_hash != hash_secret(keep)))
