"""JSON of the team: who am I, tokens, members, audit."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from backend.domain.vocabulary import Role
from backend.team import auth, queries, service
from backend.team.schemas import Invitation, MemberChange, TokenRequest
from backend.team.tables import Person
from backend.web.dependencies import Admin, SessionDep, Viewer
from backend.web.paging import LIMIT, After, Limit, Page

router = APIRouter(prefix="/api/v1", tags=["team"])


class Record(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Me(BaseModel):
    person_id: uuid.UUID
    name: str
    role: Role
    is_token: bool


class Member(Record):
    id: uuid.UUID
    email: str
    name: str
    role: Role
    created_at: datetime
    disabled_at: datetime | None


class Invited(BaseModel):
    member: Member
    link: str
    """One-time, shown only here."""


class SessionRecord(Record):
    id: uuid.UUID
    device: Annotated[str, Field(description='Browser and system, for example "Firefox on Linux"')]
    address: Annotated[str, Field(description="IP address at sign-in")]
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_current: Annotated[bool, Field(description="Whether this request was made in it")] = False


class RevokedAccess(Record):
    sessions: Annotated[int, Field(description="Number of sessions that ended")]
    tokens: Annotated[int, Field(description="Number of API tokens that were revoked")]


class Token(Record):
    id: uuid.UUID
    name: str
    prefix: str
    role: Role
    is_read_only: bool
    parent_id: Annotated[uuid.UUID | None, Field(description="The token that created this one")]
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None


class NewToken(Token):
    secret: str
    """Shown only here."""


class AuditRecord(Record):
    id: uuid.UUID
    at: datetime
    person_id: Annotated[uuid.UUID | None, Field(description="null: Proctor itself")]
    action: str
    subject_kind: str
    subject_id: str
    detail: dict[str, Any]


@router.get("/me")
def me(actor: Viewer) -> Me:
    return Me(person_id=actor.person_id, name=actor.name, role=actor.role, is_token=actor.is_token)


@router.get("/sessions")
def my_sessions(session: SessionDep, actor: Viewer) -> Page[SessionRecord]:
    """Your sessions in browsers, the last used first."""
    records = [SessionRecord.model_validate(each) for each in queries.sessions_of(session, actor.person_id)]
    return Page(items=[record.model_copy(update={"is_current": record.id == actor.session_id}) for record in records])


@router.delete("/sessions")
def revoke_other_sessions(session: SessionDep, actor: Viewer) -> RevokedAccess:
    """End all sessions but this one and revoke the tokens that were created in them. Needs a browser's session."""
    service.refuse_token_actor(actor)
    return RevokedAccess.model_validate(auth.revoke_other_sessions(session, actor))


@router.delete("/sessions/{session_id}")
def revoke_session(session: SessionDep, actor: Viewer, session_id: uuid.UUID) -> RevokedAccess:
    """End a session and revoke the tokens that were created in it. Needs a browser's session."""
    service.refuse_token_actor(actor)
    return RevokedAccess.model_validate(auth.revoke_session(session, actor, session_id)[1])


@router.get("/tokens")
def my_tokens(session: SessionDep, actor: Viewer) -> Page[Token]:
    return Page(items=[Token.model_validate(token) for token in queries.tokens_of(session, actor.person_id)])


@router.post("/tokens", status_code=201)
def create_token(session: SessionDep, actor: Viewer, form: TokenRequest) -> NewToken:
    token, secret = service.create_token(session, actor, form)
    session.refresh(token)
    return NewToken(**Token.model_validate(token).model_dump(), secret=secret)


@router.delete("/tokens/{token_id}", status_code=204)
def revoke_token(session: SessionDep, actor: Viewer, token_id: uuid.UUID) -> None:
    """Revoke a token and all tokens that were created with it."""
    service.revoke_token(session, actor, token_id)


@router.get("/members")
def members(session: SessionDep, actor: Viewer) -> Page[Member]:
    return Page(items=[Member.model_validate(person) for person in queries.people(session)])


@router.post("/members", status_code=201)
def invite(session: SessionDep, actor: Admin, form: Invitation) -> Invited:
    person, link = service.invite(session, actor, form)
    return Invited(member=_member(session, person), link=link)


@router.patch("/members/{person_id}")
def change_member(session: SessionDep, actor: Admin, person_id: uuid.UUID, form: MemberChange) -> Member:
    if form.role is not None:
        service.change_role(session, actor, person_id, form.role)
    if form.disabled is not None:
        change = service.disable if form.disabled else service.enable
        change(session, actor, person_id)
    return _member(session, queries.get_person(session, person_id))


@router.delete("/members/{person_id}/access")
def revoke_access(session: SessionDep, actor: Admin, person_id: uuid.UUID) -> RevokedAccess:
    """Sign a member out everywhere and revoke their API tokens. They may sign in again."""
    return RevokedAccess.model_validate(service.revoke_access(session, actor, person_id)[1])


def _member(session: SessionDep, person: Person) -> Member:
    session.flush()
    session.refresh(person)
    return Member.model_validate(person)


@router.get("/audit")
def audit_log(session: SessionDep, actor: Admin, after: After = None, limit: Limit = LIMIT) -> Page[AuditRecord]:
    found = queries.audit_events(session, after=after, limit=limit)
    return Page(items=[AuditRecord.model_validate(event) for event in found.items], next=found.next)
