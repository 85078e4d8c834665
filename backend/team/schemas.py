"""What forms and the API of the team take in."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from backend.domain.vocabulary import Role


def _address(value: str) -> str:
    name, at, host = value.strip().lower().partition("@")
    if not (name and at and host) or " " in value.strip() or "@" in host:
        raise ValueError("This is not an e-mail address")
    return f"{name}@{host}"


Email = Annotated[str, Field(max_length=254), AfterValidator(_address)]
PersonName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]


class SignIn(BaseModel):
    email: str = Field(default="", max_length=254)
    password: str = Field(default="", max_length=1000)
    next: str = ""


class Welcome(BaseModel):
    """What somebody enters who came by a one-time link."""

    name: PersonName
    password: str = Field(max_length=1000)


class Invitation(BaseModel):
    email: Email
    name: PersonName
    role: Role = Role.VIEWER


class RoleChange(BaseModel):
    role: Role


class MemberChange(BaseModel):
    """Only what is given changes."""

    role: Role | None = None
    disabled: bool | None = None


class PasswordChange(BaseModel):
    current: str = Field(max_length=1000)
    password: str = Field(max_length=1000)
    keep_tokens: bool = False
    """Whether the member's API tokens keep working."""


class TokenRequest(BaseModel):
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    role: Role = Role.VIEWER
    """At most your own, and at most that of the token that creates this one."""
    is_read_only: bool = False
    """Refuse everything but reading."""
    days: Annotated[int | None, Field(ge=1, le=365)] = None
    """Lifetime. Default: 90 days, or until the token that creates this one expires."""
