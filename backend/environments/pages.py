"""Pages of environments: the list, the form for a new one, and the overview of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.domain.environments.manifest import Manifest
from backend.environments import (
    queries,
    service,
)
from backend.environments.queries import CheckRun, EnvironmentRow, VersionRow
from backend.environments.schemas import NewEnvironmentForm
from backend.environments.starting_points import StartingPoint, starting_files, starting_points
from backend.environments.tables import Environment, EnvironmentDraft
from backend.environments.validation import FileProblem, validate_package
from backend.errors import AppError, InvalidInput
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other, wants_block

router = APIRouter()


@dataclass(frozen=True, slots=True)
class ListPage:
    environments: Sequence[EnvironmentRow]
    with_archived: bool


@dataclass(frozen=True, slots=True)
class NewPage:
    starting_points: Sequence[StartingPoint]
    name: str
    template: str
    errors: dict[str, str]
    message: str = ""


@dataclass(frozen=True, slots=True)
class OverviewPage:
    environment: Environment
    latest: VersionRow | None
    manifest: Manifest | None
    """Manifest of the latest version, or of the draft if nothing is published."""
    problems: Sequence[FileProblem]
    """Problems of the draft."""
    draft: EnvironmentDraft
    draft_author: str | None
    is_draft_published: bool
    versions: Sequence[VersionRow]
    checks: Sequence[CheckRun]
    runs: Sequence[Run]
    readme: str


@router.get("/environments", response_class=HTMLResponse)
def list_environments(request: Request, session: SessionDep, _: Viewer, archived: bool = False) -> HTMLResponse:
    rows = queries.list_environments(session, with_archived=archived)
    return page(request, "environments/list.html", ListPage(rows, archived))


@router.get("/environments/new", response_class=HTMLResponse)
def new_environment(
    request: Request, session: SessionDep, _: Author, template: str = "", name: str = ""
) -> HTMLResponse:
    return _new_page(request, session, NewEnvironmentForm.model_construct(name=name, template=template))


@router.post("/environments", response_class=HTMLResponse)
def create_environment(
    request: Request,
    session: SessionDep,
    actor: Author,
    form: Annotated[NewEnvironmentForm, Depends(read_form(NewEnvironmentForm))],
) -> Response:
    try:
        files = starting_files(session, form.template, form.name)
        environment = service.create_environment(session, actor, form.name, files)
    except AppError as error:
        if wants_block(request):
            raise
        return _new_page(request, session, form, error)
    return see_other(f"/environments/{environment.name}/edit", f"{environment.name} begins as a draft.")


@router.get("/environments/{name}", response_class=HTMLResponse)
def show_environment(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    environment = queries.get_environment(session, name)
    draft = queries.get_draft(session, environment)
    versions = queries.versions_of(session, environment)
    latest = versions[0] if versions else None
    validation = validate_package(draft.files, environment.name)
    context = OverviewPage(
        environment=environment,
        latest=latest,
        manifest=latest.manifest if latest else validation.manifest,
        problems=validation.problems,
        draft=draft,
        draft_author=queries.person_name(session, draft.updated_by),
        is_draft_published=service.is_published(draft, [row.version for row in versions]),
        versions=versions,
        checks=queries.check_runs_of(session, environment, limit=10),
        runs=queries.recent_runs(session, environment),
        readme=draft.files.get("README.md", ""),
    )
    return page(request, "environments/overview.html", context)


def _new_page(
    request: Request, session: SessionDep, form: NewEnvironmentForm, error: AppError | None = None
) -> HTMLResponse:
    copies = [
        (row.environment.name, row.environment.description) for row in queries.list_environments(session) if row.latest
    ]
    points = starting_points(copies, form.template)
    template = form.template or points[0].key
    fields = error.fields if isinstance(error, InvalidInput) else {}
    context = NewPage(points, form.name, template, fields, "" if error is None or fields else error.message)
    return page(request, "environments/new.html", context, status=error.status if error else 200)
