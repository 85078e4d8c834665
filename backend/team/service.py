"""Changes of the team: members, roles, passwords, API tokens. Each is audited."""

import uuid
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import ApiToken, Person
from backend.domain.vocabulary import Role
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.team import passwords, queries
from backend.team.entrance import end_sessions, first_admin, first_admin_link, link_for
from backend.team.forms import Invitation, PasswordChange, TokenRequest
from backend.web.audit import audit
from backend.web.identity import TOKEN_PREFIX, Actor, hash_secret, new_secret

__all__ = ["first_admin_link", "issue_local_token"]

LOCAL_TOKEN = "command line of this machine"


class LastAdmin(Conflict):
    """This is the last administrator; make somebody else one first."""


def invite(session: Session, actor: Actor, form: Invitation) -> tuple[Person, str]:
    """A new member and the one-time link to hand over."""
    if queries.find_person_by_email(session, form.email):
        raise InvalidInput(fields={"email": "This address belongs to a member already."})
    person = Person(email=form.email, name=form.name, role=form.role)
    session.add(person)
    session.flush()
    audit(session, actor, "person.invite", "person", person.id, email=form.email, role=str(form.role))
    return person, link_for(session, person)


def renew_link(session: Session, actor: Actor, person_id: uuid.UUID) -> tuple[Person, str]:
    """For a forgotten password or an invitation that ran out."""
    person = queries.get_person(session, person_id)
    if not person.is_active:
        raise Conflict("This member is disabled; enable them first.")
    audit(session, actor, "person.renew_link", "person", person.id)
    return person, link_for(session, person)


def change_role(session: Session, actor: Actor, person_id: uuid.UUID, role: Role) -> Person:
    person = queries.get_person(session, person_id, lock=True)
    if person.role is Role.ADMIN and role is not Role.ADMIN:
        _keep_one_admin(session, person)
    audit(session, actor, "person.change_role", "person", person.id, before=str(person.role), after=str(role))
    person.role = role
    session.flush()
    return person


def disable(session: Session, actor: Actor, person_id: uuid.UUID) -> Person:
    """Signs the member out everywhere; their tokens stop working and what they made stays."""
    person = queries.get_person(session, person_id, lock=True)
    if person.role is Role.ADMIN:
        _keep_one_admin(session, person)
    if person.disabled_at is None:
        person.disabled_at = datetime.now(UTC)
        audit(session, actor, "person.disable", "person", person.id)
    end_sessions(session, person)
    return person


def enable(session: Session, actor: Actor, person_id: uuid.UUID) -> Person:
    person = queries.get_person(session, person_id, lock=True)
    if person.disabled_at is not None:
        person.disabled_at = None
        audit(session, actor, "person.enable", "person", person.id)
    return person


def _keep_one_admin(session: Session, person: Person) -> None:
    if all(admin.id == person.id for admin in queries.active_admins(session)):
        raise LastAdmin


def change_password(session: Session, actor: Actor, form: PasswordChange, *, cookie: str) -> None:
    """One's own; every other session ends."""
    person = queries.get_person(session, actor.person_id, lock=True)
    if not passwords.is_right(form.current, person.password_hash):
        raise InvalidInput(fields={"current": "This is not your present password."})
    passwords.refuse_weak(form.password, person.email)
    person.password_hash = passwords.hash_password(form.password)
    end_sessions(session, person, keep=cookie)
    audit(session, actor, "person.change_password", "person", person.id)


def create_token(session: Session, actor: Actor, form: TokenRequest) -> tuple[ApiToken, str]:
    """The token's row and its secret, which is shown once and stored only as a hash."""
    if not actor.role.includes(form.role):
        raise InvalidInput(fields={"role": f"Your own role is {actor.role}; a token cannot do more."})
    token, secret = _new_token(session, actor.person_id, form.name, form.role, timedelta(days=form.days))
    audit(session, actor, "token.create", "token", token.id, name=form.name, role=str(form.role), days=form.days)
    return token, secret


def revoke_token(session: Session, actor: Actor, token_id: uuid.UUID) -> ApiToken:
    """One's own, or as an administrator anybody's."""
    token = session.get(ApiToken, token_id, with_for_update=True)
    if token is None or (token.person_id != actor.person_id and not actor.role.includes(Role.ADMIN)):
        raise NotFound("There is no such token.")
    if token.revoked_at is None:
        token.revoked_at = datetime.now(UTC)
        audit(session, actor, "token.revoke", "token", token.id, name=token.name)
    return token


def issue_local_token(session: Session) -> str:
    """An administrator's token for the command line on the server's own machine. The one before stops working."""
    admin = first_admin(session)
    statement = select(ApiToken).where(ApiToken.name == LOCAL_TOKEN, ApiToken.revoked_at.is_(None))
    for older in session.scalars(statement.with_for_update()):
        older.revoked_at = datetime.now(UTC)
    token, secret = _new_token(session, admin.id, LOCAL_TOKEN, Role.ADMIN, None)
    audit(session, None, "token.create", "token", token.id, name=LOCAL_TOKEN, role=str(Role.ADMIN))
    return secret


def _new_token(
    session: Session, person_id: uuid.UUID, name: str, role: Role, life: timedelta | None
) -> tuple[ApiToken, str]:
    secret = TOKEN_PREFIX + new_secret()
    token = ApiToken(
        person_id=person_id,
        name=name,
        prefix=secret[: len(TOKEN_PREFIX) + 6],
        token_hash=hash_secret(secret),
        role=role,
        expires_at=datetime.now(UTC) + life if life else None,
    )
    session.add(token)
    session.flush()
    return token, secret


def refuse_token_actor(actor: Actor) -> None:
    """Passwords are changed by people in a browser, never by a script's token."""
    if actor.is_token:
        raise NotAllowed("Sign in with your browser for this.")
