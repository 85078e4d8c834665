"""Operations on projects, their members and what belongs to them."""

import uuid
from typing import Annotated

from fastapi import Path
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation, reference
from backend.projects import queries, service
from backend.projects.schemas import (
    CreateProject,
    MoveItems,
    MoveResponse,
    ProjectMemberResponse,
    ProjectResponse,
    SetProjectRole,
    UpdateProject,
)
from backend.projects.tables import Project
from backend.team import references as _references  # noqa: F401  how addresses name members
from backend.team.tables import Person
from backend.web.identity import Actor
from backend.web.paging import Page

reference(Project, "Name or id of a project.")(queries.get_project)


@operation("GET /projects", role=Role.VIEWER, command="project list", tool=True)
def list_projects(session: Session, actor: Actor) -> Page[ProjectResponse]:
    """List the projects that you see, by name."""
    return Page(items=queries.project_responses(session, actor))


@operation("POST /projects", role=Role.ADMIN, command="project create", status=201)
def create_project(session: Session, actor: Actor, request: CreateProject) -> ProjectResponse:
    """Create a project, open to the team or restricted to its members."""
    project = service.create_project(session, actor, request)
    return queries.project_responses(session, actor, only=project.id)[0]


@operation("GET /projects/{project}", role=Role.VIEWER, command="project show", tool=True)
def get_project(session: Session, actor: Actor, project: Project) -> ProjectResponse:
    """Show a project and your role in it."""
    return queries.project_responses(session, actor, only=project.id)[0]


@operation(
    "PATCH /projects/{project}",
    role=Role.ADMIN,
    command="project update",
    page="/projects/{id}",
    notice="{name} was changed.",
)
def update_project(session: Session, actor: Actor, project: Project, request: UpdateProject) -> ProjectResponse:
    """Rename or describe a project, open it to the team or restrict it to its members."""
    service.update_project(session, actor, project, request)
    return queries.project_responses(session, actor, only=project.id)[0]


@operation(
    "DELETE /projects/{project}",
    role=Role.ADMIN,
    command="project delete",
    page="/projects",
    notice="The project was deleted.",
)
def delete_project(session: Session, actor: Actor, project: Project) -> None:
    """Delete an empty project."""
    service.delete_project(session, actor, project)


@operation("GET /projects/{project}/members", role=Role.VIEWER, command="project members")
def list_project_members(session: Session, actor: Actor, project: Project) -> Page[ProjectMemberResponse]:
    """List the people with a role in a project."""
    return Page(items=[ProjectMemberResponse.of_member(each) for each in queries.members_of(session, project)])


@operation(
    "PUT /projects/{project}/members/{member}",
    role=Role.ADMIN,
    command="project role",
    page="/projects/{project}",
    notice="{name} has the role {role} in this project.",
)
def set_project_role(
    session: Session, actor: Actor, project: Project, member: Person, request: SetProjectRole
) -> ProjectMemberResponse:
    """Give a member a role in a project. It may be higher or lower than their role in the team."""
    return ProjectMemberResponse.of_member(service.set_role(session, actor, project, member, request.role))


@operation(
    "DELETE /projects/{project}/members/{member}",
    role=Role.ADMIN,
    command="project remove-member",
    page="/projects/{project}",
    notice="The role in this project ended.",
)
def remove_project_member(session: Session, actor: Actor, project: Project, member: Person) -> None:
    """End a member's role in a project. In an open project, their role in the team holds again."""
    service.remove_member(session, project, member)


@operation("POST /projects/{project}/items", role=Role.AUTHOR, command="project move", tool=True, audited=False)
def move_items(session: Session, actor: Actor, project: Project, request: MoveItems) -> MoveResponse:
    """Move environments, policies and runs to a project, with what belongs to them."""
    return service.move_items(session, actor, project, request)


@operation(
    "POST /projects/moves/{move}/undo", role=Role.AUTHOR, command="project undo-move", audited=False, in_project=True
)
def undo_move(
    session: Session, actor: Actor, move: Annotated[uuid.UUID, Path(description="Id of a move.")]
) -> MoveResponse:
    """Return the items of a move to the projects from which they came."""
    return service.undo_move(session, actor, move)
