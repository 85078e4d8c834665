"""Requests, forms and responses of the team."""

import uuid
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from backend.domain.vocabulary import Role
from backend.operations.schemas import Cli, ListRequest, Request, Response


def _address(value: str) -> str:
    name, at, host = value.strip().lower().partition("@")
    if not (name and at and host) or " " in value.strip() or "@" in host:
        raise ValueError("This is not an email address")
    return f"{name}@{host}"


Email = Annotated[str, Field(max_length=254), AfterValidator(_address)]
PersonName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]


class SignIn(BaseModel):
    email: str = Field(default="", max_length=254)
    password: str = Field(default="", max_length=1000)
    next: str = ""


class Welcome(BaseModel):
    """The form behind a one-time link."""

    name: PersonName
    password: str = Field(max_length=1000)


class InviteMember(Request):
    email: Annotated[Email, Field(description="E-mail address."), Cli(argument=True)]
    name: Annotated[PersonName, Field(description="Display name. The member can change it."), Cli(argument=True)]
    role: Role = Field(Role.VIEWER, description="Role of the member.")


class UpdateMember(Request):
    role: Role | None = Field(None, description="New role.")
    disabled: bool | None = Field(None, description="Whether the member may no longer sign in.")


class PasswordChange(BaseModel):
    current: str = Field(max_length=1000)
    password: str = Field(max_length=1000)
    keep_tokens: bool = False
    """Whether the member's API tokens keep working."""


class CreateToken(Request):
    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=100),
        Field(description="Purpose of the token."),
        Cli(argument=True),
    ]
    role: Role = Field(Role.VIEWER, description="At most your own role, and that of the token you use.")
    is_read_only: Annotated[
        bool, Field(description="Refuse requests that change anything."), Cli(option="--read-only")
    ] = False
    days: int | None = Field(
        None, ge=1, le=365, description="Lifetime in days. Default: 90, or until the token you use expires."
    )


class ListAudit(ListRequest):
    subject: str = Field("", max_length=100, description="Only changes of this kind of subject, such as `run`.")


class Me(Response):
    person_id: uuid.UUID
    name: str
    role: Role
    is_token: bool
    """Whether you use an API token."""


class Member(Response):
    table_columns = ("name", "email", "role", "disabled_at", "id")

    id: uuid.UUID
    email: str
    name: str
    role: Role
    created_at: datetime
    disabled_at: datetime | None


class InvitedMember(Response):
    member: Member
    link: str
    """The sign-in link. It works once and is shown only here."""


class SignInSession(Response):
    id: uuid.UUID
    device: str
    """Browser and system, for example "Firefox on Linux"."""
    address: str
    """IP address at sign-in."""
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    is_current: bool = False
    """Whether this request was made in it."""


class RevokedAccess(Response):
    sessions: int
    """Number of sessions that ended."""
    tokens: int
    """Number of API tokens that were revoked."""


class RevokedSession(RevokedAccess):
    device: str
    """Its browser and system."""


class Token(Response):
    table_columns = ("name", "prefix", "role", "is_read_only", "expires_at", "used_at", "id")

    id: uuid.UUID
    name: str
    prefix: str
    role: Role
    is_read_only: bool
    parent_id: uuid.UUID | None
    """The token that created this one."""
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None


class NewToken(Token):
    secret: str
    """Shown only here. Set it as PROCTOR_TOKEN."""


class AuditEntry(Response):
    table_columns = ("at", "action", "subject_kind", "subject_id", "person_id")

    id: uuid.UUID
    at: datetime
    person_id: uuid.UUID | None
    """Null: Proctor itself."""
    action: str
    subject_kind: str
    subject_id: str
    detail: dict[str, object]
