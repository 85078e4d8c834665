"""Changes of the team: members, roles, passwords, API tokens. Each is audited."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import access_topic, announce
from backend.domain.vocabulary import Role
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound, NotSignedIn
from backend.team import attempt_limits, passwords, queries
from backend.team.attempt_limits import Limit
from backend.team.auth import Revoked, end_access, first_admin, first_admin_link, link_for, revoke_tokens
from backend.team.schemas import CreateToken, InviteMember, PasswordChange
from backend.team.tables import ApiToken, Person, WebSession
from backend.web.audit import audit
from backend.web.identity import TOKEN_PREFIX, Actor, hash_secret, new_secret

__all__ = ["first_admin_link", "issue_local_token"]

LOCAL_TOKEN = "command line of this machine"
TOKEN_DAYS = 90
"""Lifetime of a token by default."""
PRESENT_PASSWORD = Limit("present password in a session", 5, timedelta(minutes=15))


class LastAdmin(Conflict):
    """This is the last administrator; make somebody else one first."""


class WrongPassword(InvalidInput):
    """Your current password is wrong."""

    keeps_changes = True


def invite(session: Session, actor: Actor, form: InviteMember) -> tuple[Person, str]:
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
    """Takes effect at once, also in open pages and for the member's tokens."""
    admins = queries.active_admins(session)
    person = queries.get_person(session, person_id, lock=True)
    if role is not Role.ADMIN:
        _keep_one_admin(admins, person)
    audit(session, actor, "person.change_role", "person", person.id, before=str(person.role), after=str(role))
    person.role = role
    session.flush()
    announce(session, access_topic(person.id))
    return person


def disable(session: Session, actor: Actor, person_id: uuid.UUID) -> Person:
    """Signs the member out everywhere and revokes their tokens; what they made stays."""
    admins = queries.active_admins(session)
    person = queries.get_person(session, person_id, lock=True)
    _keep_one_admin(admins, person)
    revoked = end_access(session, person, tokens=True, local=True)
    if person.disabled_at is None:
        person.disabled_at = datetime.now(UTC)
        audit(session, actor, "person.disable", "person", person.id, sessions=revoked.sessions, tokens=revoked.tokens)
    return person


def revoke_access(session: Session, actor: Actor, person_id: uuid.UUID) -> tuple[Person, Revoked]:
    """Signs the member out everywhere and revokes their tokens; they may sign in again."""
    person = queries.get_person(session, person_id, lock=True)
    revoked = end_access(session, person, tokens=True)
    counts = {"sessions": revoked.sessions, "tokens": revoked.tokens}
    audit(session, actor, "person.revoke_access", "person", person.id, **counts)
    return person, revoked


def enable(session: Session, actor: Actor, person_id: uuid.UUID) -> Person:
    person = queries.get_person(session, person_id, lock=True)
    if person.disabled_at is not None:
        person.disabled_at = None
        audit(session, actor, "person.enable", "person", person.id)
    return person


def _keep_one_admin(admins: Sequence[Person], person: Person) -> None:
    if [admin.id for admin in admins] == [person.id]:
        raise LastAdmin


def change_password(session: Session, actor: Actor, form: PasswordChange) -> Revoked:
    """One's own; every other session ends, and the tokens are revoked unless they are to be kept.

    Raises WrongPassword or TooManyAttempts, whose counted attempt is committed.
    """
    usage = attempt_limits.take(session, PRESENT_PASSWORD, str(actor.session_id))
    if usage.is_exceeded:
        raise usage.refusal()
    person = queries.get_person(session, actor.person_id, lock=True)
    if not passwords.is_right(form.current, person.password_hash):
        if usage.count == 1:
            audit(session, actor, "person.change_password_failed", "person", person.id)
        raise WrongPassword(fields={"current": "This is not your current password."})
    passwords.refuse_weak(form.password, person.email)
    attempt_limits.give_back(session, usage)
    person.password_hash = passwords.hash_password(form.password)
    revoked = end_access(session, person, tokens=not form.keep_tokens, keep=actor.session_id)
    counts = {"sessions": revoked.sessions, "tokens": revoked.tokens}
    audit(session, actor, "person.change_password", "person", person.id, **counts)
    return revoked


def create_token(session: Session, actor: Actor, form: CreateToken) -> tuple[ApiToken, str]:
    """The token's row and its secret, which is shown once and stored only as a hash.

    A token that a token creates does not outlive it and cannot do more.
    """
    if not actor.role.includes(form.role):
        raise InvalidInput(fields={"role": f"Your own role is {actor.role}; a token cannot do more."})
    queries.get_person(session, actor.person_id, lock=True)  # nothing is revoked meanwhile
    parent = _creating_token(session, actor)
    token, secret = _new_token(
        person_id=actor.person_id,
        name=form.name,
        role=form.role,
        is_read_only=form.is_read_only or actor.is_read_only,
        parent_id=parent.id if parent else None,
        session_id=actor.session_id,
        expires_at=_expiry(form.days, parent.expires_at if parent else None),
    )
    session.add(token)
    session.flush()
    detail = {"name": form.name, "role": str(form.role), "read_only": token.is_read_only}
    audit(session, actor, "token.create", "token", token.id, **detail, expires_at=f"{token.expires_at:%Y-%m-%d}")
    return token, secret


def _creating_token(session: Session, actor: Actor) -> ApiToken | None:
    """The token that the actor uses, None in a browser. Raises NotSignedIn where it was revoked in the meantime."""
    if actor.token_id is not None:
        token = session.get_one(ApiToken, actor.token_id, populate_existing=True)
        if token.revoked_at is not None:
            raise NotSignedIn
        return token
    if actor.session_id is not None and session.get(WebSession, actor.session_id, populate_existing=True) is None:
        raise NotSignedIn
    return None


def _expiry(days: int | None, latest: datetime | None) -> datetime:
    expires_at = datetime.now(UTC) + timedelta(days=days or TOKEN_DAYS)
    if latest is None or expires_at <= latest:
        return expires_at
    if days is None:
        return latest
    whole_days = max(0, (latest - datetime.now(UTC)).days)
    text = f"The token that creates this one expires on {latest:%Y-%m-%d}, and this one cannot outlive it."
    advice = f"Choose at most {whole_days}." if whole_days else "Leave this empty to let both expire together."
    raise InvalidInput(fields={"days": f"{text} {advice}"})


def revoke_token(session: Session, actor: Actor, token_id: uuid.UUID) -> tuple[ApiToken, int]:
    """Revoke a token and all that were created with it; also returns their number.

    One's own, or as an administrator anyone's. A token of a lower role may revoke itself and its descendants.
    """
    token = session.get(ApiToken, token_id)
    if token is None or not _may_revoke(session, actor, token):
        raise NotFound("There is no such token.")
    queries.get_person(session, token.person_id, lock=True)
    count = revoke_tokens(session, ApiToken.id == token.id)
    if count:
        audit(session, actor, "token.revoke", "token", token.id, name=token.name, tokens=count)
    return token, count


def _may_revoke(session: Session, actor: Actor, token: ApiToken) -> bool:
    if actor.role.includes(Role.ADMIN):
        return True
    if token.person_id != actor.person_id:
        return False
    ancestor: ApiToken | None = token
    while actor.is_token and ancestor is not None and ancestor.id != actor.token_id:
        ancestor = session.get(ApiToken, ancestor.parent_id) if ancestor.parent_id else None
    return ancestor is not None


def issue_local_token(session: Session) -> str:
    """An administrator's token for the command line on the server's own machine. The one before stops working."""
    admin = first_admin(session)
    revoke_tokens(session, ApiToken.is_local.is_(True))
    token, secret = _new_token(person_id=admin.id, name=LOCAL_TOKEN, role=Role.ADMIN, is_local=True)
    session.add(token)
    session.flush()
    audit(session, None, "token.create", "token", token.id, name=LOCAL_TOKEN, role=str(Role.ADMIN))
    return secret


def is_local_token(session: Session, secret: str) -> bool:
    """Does this secret, left by an earlier start, still open everything on this machine?"""
    statement = select(ApiToken.id).join(ApiToken.person)
    statement = statement.where(ApiToken.token_hash == hash_secret(secret), ApiToken.revoked_at.is_(None))
    is_whole = Person.disabled_at.is_(None) & (Person.role == Role.ADMIN) & ApiToken.is_local
    return session.scalar(statement.where(is_whole)) is not None


def _new_token(**fields: Any) -> tuple[ApiToken, str]:
    secret = TOKEN_PREFIX + new_secret()
    prefix = secret[: len(TOKEN_PREFIX) + 6]
    return ApiToken(prefix=prefix, token_hash=hash_secret(secret), **fields), secret


def refuse_token_actor(actor: Actor) -> None:
    """Passwords and sessions are changed by people in a browser, never by a script's token."""
    if actor.is_token:
        raise NotAllowed("Sign in with your browser for this.")
