"""Change members, roles, passwords and API tokens. Each change is audited."""

import uuid
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import access_topic, announce
from backend.domain.vocabulary import Role
from backend.errors import Conflict, InvalidInput, NotAllowed, NotSignedIn
from backend.team import passwords, queries
from backend.team.auth import end_access, first_admin, link_for, revoke_tokens
from backend.team.passwords import Limit, count_attempt, uncount_attempt
from backend.team.schemas import CreateToken, InviteMember, PasswordChange, RevokedAccess, UpdateMember
from backend.team.tables import ApiToken, Person, WebSession
from backend.web.audit import audit
from backend.web.identity import TOKEN_PREFIX, Actor, hash_secret, new_secret

LOCAL_TOKEN = "command line of this machine"
TOKEN_DAYS = 90
"""Default lifetime of a token."""
SHOWN_CHARACTERS = len(TOKEN_PREFIX) + 6
"""The start of a secret that is stored, so that people recognize the token."""
CURRENT_PASSWORD = Limit("present password in a session", 5, timedelta(minutes=15))


class LastAdmin(Conflict):
    """This is the last administrator. Make someone else an administrator first."""


class WrongPassword(InvalidInput):
    """Your current password is wrong."""

    keeps_changes = True


def invite(session: Session, actor: Actor, form: InviteMember) -> tuple[Person, str]:
    """Add a member and return the one-time link to share."""
    if queries.find_person_by_email(session, form.email):
        raise InvalidInput(fields={"email": "A member has this address already."})
    person = Person(email=form.email, name=form.name, role=form.role)
    session.add(person)
    session.flush()
    audit(session, actor, "person.invite", "person", person.id, email=form.email, role=str(form.role))
    return person, link_for(session, person)


def renew_link(session: Session, actor: Actor, person_id: uuid.UUID) -> tuple[Person, str]:
    """Return a new one-time link, for a forgotten password or an expired invitation."""
    person = queries.get_person(session, person_id)
    if not person.is_active:
        raise Conflict("This member is disabled. Enable them first.")
    audit(session, actor, "person.renew_link", "person", person.id)
    return person, link_for(session, person)


def update_member(session: Session, actor: Actor, person_id: uuid.UUID, request: UpdateMember) -> Person:
    """Change a role at once, also in open pages and for the member's tokens; disable or enable the member.

    A disabled member is signed out everywhere, has no tokens and cannot sign in. Their work stays.
    """
    admins = queries.active_admins(session)
    person = queries.get_person(session, person_id, lock=True)
    loses_access = request.disabled or request.role not in {None, Role.ADMIN}
    if loses_access and [admin.id for admin in admins] == [person.id]:
        raise LastAdmin
    if request.role is not None:
        detail = {"before": str(person.role), "after": str(request.role)}
        audit(session, actor, "person.change_role", "person", person.id, **detail)
        person.role = request.role
        session.flush()
        announce(session, access_topic(person.id))
    if request.disabled:
        revoked = end_access(session, person, tokens=True, local=True)
        if person.disabled_at is None:
            person.disabled_at = datetime.now(UTC)
            audit(session, actor, "person.disable", "person", person.id, **revoked.model_dump())
    elif request.disabled is False and person.disabled_at is not None:
        person.disabled_at = None
        audit(session, actor, "person.enable", "person", person.id)
    return person


def change_password(session: Session, actor: Actor, form: PasswordChange) -> RevokedAccess:
    """Change the actor's own password. All other sessions end, and tokens are revoked unless they are kept.

    Raises WrongPassword or TooManyAttempts, whose counted attempt is committed.
    """
    usage = count_attempt(session, CURRENT_PASSWORD, str(actor.session_id))
    if usage.is_exceeded:
        raise usage.refusal()
    person = queries.get_person(session, actor.person_id, lock=True)
    if not passwords.is_right(form.current, person.password_hash):
        if usage.count == 1:
            audit(session, actor, "person.change_password_failed", "person", person.id)
        raise WrongPassword(fields={"current": "This is not your current password."})
    passwords.refuse_weak(form.password, person.email)
    uncount_attempt(session, usage)
    person.password_hash = passwords.hash_password(form.password)
    revoked = end_access(session, person, tokens=not form.keep_tokens, keep=actor.session_id)
    audit(session, actor, "person.change_password", "person", person.id, **revoked.model_dump())
    return revoked


def create_token(session: Session, actor: Actor, form: CreateToken) -> tuple[ApiToken, str]:
    """Create a token and return it with its secret, which is stored only as a hash.

    A token that a token creates cannot outlive it or do more. Raises NotSignedIn if access was revoked in the meantime.
    """
    if not actor.role.includes(form.role):
        raise InvalidInput(fields={"role": f"Your own role is {actor.role}; a token cannot do more."})
    queries.get_person(session, actor.person_id, lock=True)  # nothing is revoked from here on
    parent = session.get_one(ApiToken, actor.token_id, populate_existing=True) if actor.token_id else None
    if parent and parent.revoked_at is not None:
        raise NotSignedIn
    if actor.session_id and session.get(WebSession, actor.session_id, populate_existing=True) is None:
        raise NotSignedIn
    expires_at = datetime.now(UTC) + timedelta(days=form.days or TOKEN_DAYS)
    if parent and parent.expires_at and expires_at > parent.expires_at:
        if form.days is not None:
            days = max(0, (parent.expires_at - datetime.now(UTC)).days)
            advice = f"Choose at most {days}." if days else "Leave this empty to let both expire together."
            text = f"The token that creates this one expires on {parent.expires_at:%Y-%m-%d}"
            raise InvalidInput(fields={"days": f"{text}, and this one cannot outlive it. {advice}"})
        expires_at = parent.expires_at
    secret = TOKEN_PREFIX + new_secret()
    token = ApiToken(
        prefix=secret[:SHOWN_CHARACTERS],
        token_hash=hash_secret(secret),
        person_id=actor.person_id,
        name=form.name,
        role=form.role,
        is_read_only=form.is_read_only or actor.is_read_only,
        parent_id=parent.id if parent else None,
        session_id=actor.session_id,
        expires_at=expires_at,
    )
    session.add(token)
    session.flush()
    detail = {"name": form.name, "role": str(form.role), "read_only": token.is_read_only}
    audit(session, actor, "token.create", "token", token.id, **detail, expires_at=f"{token.expires_at:%Y-%m-%d}")
    return token, secret


def issue_local_token(session: Session) -> str:
    """Create the administrator's token for the command line on the server's own machine, and revoke the one before."""
    admin = first_admin(session)
    revoke_tokens(session, ApiToken.is_local.is_(True))
    secret = TOKEN_PREFIX + new_secret()
    token = ApiToken(
        prefix=secret[:SHOWN_CHARACTERS],
        token_hash=hash_secret(secret),
        person_id=admin.id,
        name=LOCAL_TOKEN,
        role=Role.ADMIN,
        is_local=True,
    )
    session.add(token)
    session.flush()
    audit(session, None, "token.create", "token", token.id, name=LOCAL_TOKEN, role=str(Role.ADMIN))
    return secret


def is_local_token(session: Session, secret: str) -> bool:
    """Whether this secret, left by an earlier start, still gives full access."""
    statement = select(ApiToken.id).join(ApiToken.person)
    statement = statement.where(ApiToken.token_hash == hash_secret(secret), ApiToken.revoked_at.is_(None))
    is_admin = Person.disabled_at.is_(None) & (Person.role == Role.ADMIN) & ApiToken.is_local
    return session.scalar(statement.where(is_admin)) is not None


def refuse_token_actor(actor: Actor) -> None:
    """Refuse API tokens: passwords and sessions are changed by people in a browser."""
    if actor.is_token:
        raise NotAllowed("Sign in with your browser for this.")
