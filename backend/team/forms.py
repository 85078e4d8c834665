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
    password: str


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
    current: str
    password: str


class TokenRequest(BaseModel):
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
    role: Role = Role.VIEWER
    days: Annotated[int, Field(ge=1, le=365)] = 90
