"""Manage your own access and, as an administrator, the team."""

import uuid
from typing import Annotated

from fastapi import Path
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import NotFound
from backend.operations.declaration import operation
from backend.team import auth, queries, service
from backend.team import references as _references  # noqa: F401  how addresses name members
from backend.team.schemas import (
    AuditEntry,
    CreateToken,
    InvitedMember,
    InviteMember,
    ListAudit,
    Me,
    Member,
    NewToken,
    RevokedAccess,
    RevokedSession,
    SignInSession,
    Token,
    UpdateMember,
)
from backend.team.tables import ApiToken, Person
from backend.web.audit import audit
from backend.web.identity import Actor
from backend.web.paging import Page


@operation("GET /me", role=Role.VIEWER, command="whoami")
def whoami(session: Session, actor: Actor) -> Me:
    """Show the member whose token or session you use."""
    return Me(person_id=actor.person_id, name=actor.name, role=actor.role, is_token=actor.is_token)


@operation("GET /sessions", role=Role.VIEWER, noun="sessions")
def list_sessions(session: Session, actor: Actor) -> Page[SignInSession]:
    """List your browser sessions, most recently used first."""
    sessions = [SignInSession.of(each) for each in queries.sessions_of(session, actor.person_id)]
    return Page(items=[each.model_copy(update={"is_current": each.id == actor.session_id}) for each in sessions])


@operation(
    "DELETE /sessions",
    role=Role.VIEWER,
    noun="sessions",
    status=200,
    audited=False,
    page="/me",
    notice="Other sessions ended: {sessions}. API tokens revoked: {tokens}.",
)
def revoke_other_sessions(session: Session, actor: Actor) -> RevokedAccess:
    """End all sessions except this one and revoke the tokens created in them. Needs a browser session."""
    service.refuse_token_actor(actor)
    return auth.revoke_sessions(session, actor)


@operation(
    "DELETE /sessions/{session_id}",
    role=Role.VIEWER,
    noun="sessions",
    audited=False,
    page="/me",
    notice="The session in {device} ended. API tokens revoked: {tokens}.",
)
def revoke_session(session: Session, actor: Actor, session_id: uuid.UUID) -> RevokedSession:
    """End a session and revoke the tokens created in it. Needs a browser session."""
    service.refuse_token_actor(actor)
    return auth.revoke_sessions(session, actor, session_id)


@operation("GET /tokens", role=Role.VIEWER, noun="tokens", command="token list")
def list_tokens(session: Session, actor: Actor) -> Page[Token]:
    """List your API tokens."""
    return Page(items=[Token.of(token) for token in queries.tokens_of(session, actor.person_id)])


@operation("POST /tokens", role=Role.VIEWER, noun="tokens", command="token create", status=201, audited=False)
def create_token(session: Session, actor: Actor, request: CreateToken) -> NewToken:
    """Create an API token. Its secret is shown once."""
    token, secret = service.create_token(session, actor, request)
    session.refresh(token)
    return NewToken(**Token.of(token).model_dump(), secret=secret)


@operation(
    "DELETE /tokens/{token}",
    role=Role.VIEWER,
    noun="tokens",
    command="token revoke",
    audited=False,
    page="/me",
    notice="The token and all tokens created with it were revoked.",
)
def revoke_token(
    session: Session, actor: Actor, token: Annotated[uuid.UUID, Path(description="Id of a token.")]
) -> None:
    """Revoke a token and all tokens created with it.

    Members revoke their own tokens, administrators any. A token of a lower role revokes itself and its descendants.
    """
    found = session.get(ApiToken, token)
    may_revoke = found is not None and (actor.role.includes(Role.ADMIN) or found.person_id == actor.person_id)
    if actor.is_token and not actor.role.includes(Role.ADMIN):
        ancestor = found
        while ancestor is not None and ancestor.id != actor.token_id:
            ancestor = session.get(ApiToken, ancestor.parent_id) if ancestor.parent_id else None
        may_revoke = may_revoke and ancestor is not None
    if found is None or not may_revoke:
        raise NotFound("There is no such token.")
    queries.get_person(session, found.person_id, lock=True)
    if count := auth.revoke_tokens(session, ApiToken.id == found.id):
        audit(session, actor, "token.revoke", "token", found.id, name=found.name, tokens=count)


@operation("GET /members", role=Role.VIEWER, noun="members", command="member list")
def list_members(session: Session, actor: Actor) -> Page[Member]:
    """List the members of the team."""
    return Page(items=[Member.of(person) for person in queries.people(session)])


@operation("POST /members", role=Role.ADMIN, noun="members", command="member invite", status=201, audited=False)
def invite_member(session: Session, actor: Actor, request: InviteMember) -> InvitedMember:
    """Invite a person by email address. The link in the answer works once."""
    person, link = service.invite(session, actor, request)
    session.refresh(person)
    return InvitedMember(member=Member.of(person), link=link)


@operation("PATCH /members/{member}", role=Role.ADMIN, noun="members", command="member update", audited=False)
def update_member(session: Session, actor: Actor, member: Person, request: UpdateMember) -> Member:
    """Change a member's role, or disable or enable the member."""
    service.update_member(session, actor, member.id, request)
    session.flush()
    session.refresh(member)
    return Member.of(member)


@operation(
    "DELETE /members/{member}/access",
    role=Role.ADMIN,
    noun="members",
    command="member sign-out",
    audited=False,
    page="/team",
    notice="Signed out everywhere. Sessions ended: {sessions}. API tokens revoked: {tokens}.",
)
def revoke_member_access(session: Session, actor: Actor, member: Person) -> RevokedAccess:
    """Sign a member out everywhere and revoke their API tokens. They may sign in again."""
    queries.get_person(session, member.id, lock=True)
    revoked = auth.end_access(session, member, tokens=True)
    audit(session, actor, "person.revoke_access", "person", member.id, **revoked.model_dump())
    return revoked


@operation("GET /audit", role=Role.ADMIN, noun="audit", command="audit")
def list_audit(session: Session, actor: Actor, request: ListAudit) -> Page[AuditEntry]:
    """List changes and who made them, newest first."""
    found = queries.audit_events(session, after=request.after, limit=request.limit, subject=request.subject)
    return Page(items=[AuditEntry.of(event) for event in found.items], next=found.next)
