"""Pages of projects: the list, one project with its members and moves, and the chooser in the header."""

import uuid
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel

from backend.domain.vocabulary import Role
from backend.projects import queries, service
from backend.projects.schemas import CreateProject, MoveItems
from backend.team.queries import find_member, people
from backend.web.audit import audit
from backend.web.dependencies import PROJECT_COOKIE, Admin, ElsewhereAuthor, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import NAVIGATION, page, see_other

router = APIRouter()


class ChooseProject(BaseModel):
    """The chooser in the header."""

    project: str = ""
    """Id. Empty: all projects."""
    here: str = "/"
    """Path of the page with the chooser."""


class MoveItem(BaseModel):
    """The form on the page of an item."""

    kind: Literal["environments", "policies", "runs"]
    item: str
    source: str
    project: str


class GiveRole(BaseModel):
    """The form on a project's page."""

    member: str
    """Id of a person."""
    role: Role


@router.get("/projects", response_class=HTMLResponse)
def list_projects(request: Request, session: SessionDep, actor: Viewer) -> HTMLResponse:
    return page(request, "projects/list.html", {"projects": queries.project_responses(session, actor)})


@router.post("/projects")
def create_project(
    session: SessionDep, actor: Admin, form: Annotated[CreateProject, Depends(read_form(CreateProject))]
) -> Response:
    project = service.create_project(session, actor, form)
    return see_other(f"/projects/{project.id}", f"{project.name} was created. Add its members, then move items to it.")


@router.post("/projects/choose")
def choose_project(
    session: SessionDep, actor: Viewer, form: Annotated[ChooseProject, Depends(read_form(ChooseProject))]
) -> Response:
    """Work in one project: lists show its items, and new ones belong to it."""
    pages = {entry.url for entries in NAVIGATION.values() for entry in entries}
    response = see_other(form.here if form.here in pages else "/")
    if form.project:
        project = queries.get_project(session, form.project)
        response.set_cookie(
            PROJECT_COOKIE, str(project.id), max_age=365 * 86400, httponly=True, samesite="lax", path="/"
        )
    else:
        response.delete_cookie(PROJECT_COOKIE, path="/")
    return response


@router.post("/projects/move")
def move_item(
    session: SessionDep, actor: ElsewhereAuthor, form: Annotated[MoveItem, Depends(read_form(MoveItem))]
) -> Response:
    """Move one item from its own page."""
    project = queries.get_project(session, form.project)
    request = MoveItems.model_validate({form.kind: [form.item], "source": form.source})
    moved = service.move_items(session, actor.within(project.id), project, request)
    back = {"environments": "/environments/", "policies": "/policies/", "runs": "/runs/"}[form.kind]
    others = moved.environments + moved.policies + moved.runs - 1
    with_it = f", with {others} item{'s' * (others > 1)} that belong{'s' * (others == 1)} to it" if others > 0 else ""
    return see_other(
        back + quote(form.item), f"Moved to {moved.project}{with_it}. To undo it, open the project's page."
    )


@router.post("/projects/moves/{move_id}/undo")
def undo_move(session: SessionDep, actor: ElsewhereAuthor, move_id: uuid.UUID) -> Response:
    moved = service.undo_move(session, actor, move_id)
    return see_other("/projects", f"Moved back to {moved.project}.")


@router.post("/projects/{project_id}/members")
def give_role(
    session: SessionDep, actor: Admin, project_id: uuid.UUID, form: Annotated[GiveRole, Depends(read_form(GiveRole))]
) -> Response:
    project, person = queries.get_project(session, str(project_id)), find_member(session, form.member)
    service.set_role(session, actor, project, person, form.role)
    audit(session, actor, "project.set_role", "project", project.id, name=project.name, role=str(form.role))
    return see_other(f"/projects/{project.id}", f"{person.name} has the role {form.role} in this project.")


@router.get("/projects/{project_id}", response_class=HTMLResponse)
def show_project(request: Request, session: SessionDep, actor: Viewer, project_id: uuid.UUID) -> HTMLResponse:
    project = queries.get_project(session, str(project_id))
    members = queries.members_of(session, project)
    candidates = [each for each in people(session) if each.is_active and each.role is not Role.ADMIN]
    context = {
        "project": queries.project_responses(session, actor, only=project.id)[0],
        "members": members,
        "candidates": [(str(each.id), f"{each.name} ({each.role})") for each in candidates],
        "roles": list(Role),
        "may_manage": actor.may(Role.ADMIN),
        "moves": queries.moves_to(session, project),
        "names": {str(key): name for key, name in actor.access.names.items()},
    }
    return page(request, "projects/detail.html", context)
