"""Requests and responses of projects."""

import uuid
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from backend.domain.vocabulary import Role
from backend.operations.schemas import Cli, Request, Response
from backend.projects.tables import ProjectMember

ProjectName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=60, pattern="^[^/]+$")]
ItemName = Annotated[str, StringConstraints(max_length=200)]
MAX_ITEMS = 500


class CreateProject(Request):
    name: Annotated[ProjectName, Field(description="Name, without slashes."), Cli(argument=True)]
    description: str = Field("", max_length=2000, description="What belongs in it.")
    is_restricted: Annotated[
        bool,
        Cli(option="--restricted"),
        Field(description="Only its members and administrators see it. Default: the whole team does."),
    ] = False


class UpdateProject(Request):
    name: ProjectName | None = Field(None, description="New name.")
    description: str | None = Field(None, max_length=2000, description="What belongs in it.")
    is_restricted: bool | None = Field(None, description="Whether only its members and administrators see it.")


class SetProjectRole(Request):
    role: Role = Field(description="Role in this project, in place of the role in the team.")


class ProjectMemberResponse(Response):
    table_columns: ClassVar = ("name", "email", "role")

    person_id: uuid.UUID
    name: str
    email: str
    role: Role = Field(description="Role in this project.")
    added_at: datetime

    @classmethod
    def of_member(cls, member: ProjectMember) -> "ProjectMemberResponse":
        return cls.from_row(member, name=member.person.name, email=member.person.email)


class ProjectResponse(Response):
    table_columns: ClassVar = ("name", "is_restricted", "your_role", "environments", "policies", "runs")

    id: uuid.UUID
    name: str
    description: str
    is_restricted: bool
    is_default: bool = Field(description="Whether it is the default project, which stays open to the team.")
    your_role: Role = Field(description="Your role in this project.")
    environments: int = Field(description="Number of environments.")
    policies: int = Field(description="Number of policies.")
    runs: int = Field(description="Number of runs.")
    members: int = Field(description="Number of people with a role in this project.")
    created_at: datetime


class MoveItems(Request):
    environments: Annotated[list[ItemName], Cli(option="--environment")] = Field(
        [], max_length=MAX_ITEMS, description="Names or ids of environments."
    )
    policies: Annotated[list[ItemName], Cli(option="--policy")] = Field(
        [], max_length=MAX_ITEMS, description="Names or ids of policies."
    )
    runs: Annotated[list[ItemName], Cli(option="--run")] = Field([], max_length=MAX_ITEMS, description="Ids of runs.")
    source: str | None = Field(
        None,
        max_length=60,
        description="Name or id of the project in which you see them. The move is refused if they are elsewhere by now."
        " Default: they may be in any project.",
    )


class MoveResponse(Response):
    table_columns: ClassVar = ("project", "environments", "policies", "runs")

    id: uuid.UUID = Field(description="Id of the move, to undo it.")
    project: str = Field(description="Name of the project to which the items belong now.")
    environments: int = Field(description="Number of moved environments.")
    policies: int = Field(description="Number of moved policies.")
    runs: int = Field(description="Number of moved runs, including runs that followed their environment or policy.")
