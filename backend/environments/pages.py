"""Pages of environments: the list, the form for a new one, the overview, and published versions."""

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import pack
from backend.environments import queries, service
from backend.environments.diff import diff_files
from backend.environments.export import complete_package
from backend.environments.library import Template, templates
from backend.environments.network_grants import NetworkState, network_state
from backend.environments.queries import DRAFT, CheckRun
from backend.environments.schemas import NewEnvironmentForm
from backend.environments.service import COPY, starting_files
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.errors import AppError, InvalidInput
from backend.policies.queries import PolicyOption, policy_options
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other, wants_block
from backend.web.streams import live_blocks

router = APIRouter()


@dataclass(frozen=True, slots=True)
class VersionPage:
    environment: Environment
    version: EnvironmentVersion
    publisher: str | None
    manifest: Manifest
    network: NetworkState
    newest: int
    certificate: Certificate | None
    is_older: bool
    """Whether the version has a newer certificate."""
    open_check: Run | None
    failed_check: Run | None
    """The latest check run, if it ended without a certificate."""
    checks: Sequence[CheckRun]
    policies: Sequence[PolicyOption]
    """Policies that can measure the tasks; none while checks run."""

    @property
    def is_over(self) -> bool:
        return self.open_check is None


@router.get("/environments", response_class=HTMLResponse)
def list_environments(request: Request, session: SessionDep, _: Viewer, archived: bool = False) -> HTMLResponse:
    rows = queries.list_environments(session, with_archived=archived)
    return page(request, "environments/list.html", {"environments": rows, "with_archived": archived})


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


def _new_page(
    request: Request, session: Session, form: NewEnvironmentForm, error: AppError | None = None
) -> HTMLResponse:
    """Offer the templates, a copy of each published environment, and the requested fork of a version."""
    points = [*templates()]
    if form.template.startswith(COPY) and "@" in form.template:
        name, _, number = form.template.removeprefix(COPY).partition("@")
        points.append(Template(form.template, f"Fork of {name} v{number}", "Exactly this version's files."))
    for environment in [row.environment for row in queries.list_environments(session) if row.latest]:
        points.append(Template(COPY + environment.name, f"Copy of {environment.name}", environment.description))
    fields = error.fields if isinstance(error, InvalidInput) else {}
    message = "" if error is None or fields else error.message
    context = {
        "starting_points": points,
        "name": form.name,
        "template": form.template or points[0].name,
        "errors": fields,
        "message": message,
    }
    return page(request, "environments/new.html", context, status=error.status if error else 200)


@router.get("/environments/{name}", response_class=HTMLResponse)
def show_environment(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    environment = queries.get_environment(session, name)
    draft = queries.get_draft(session, environment)
    versions = queries.versions_of(session, environment)
    latest = versions[0] if versions else None
    validation = validate_package(draft.files, environment.name)
    context = {
        "environment": environment,
        "latest": latest,
        "manifest": latest.manifest if latest else validation.manifest,
        "problems": validation.problems,
        "draft": draft,
        "draft_author": queries.person_name(session, draft.updated_by),
        "is_draft_published": service.is_published(draft, [row.version for row in versions]),
        "versions": versions,
        "checks": queries.check_runs_of(session, environment, limit=10),
        "runs": queries.recent_runs(session, environment),
        "readme": draft.files.get("README.md", ""),
    }
    return page(request, "environments/overview.html", context)


@router.get("/environments/{name}/versions/{number}", response_class=HTMLResponse)
def show_version(
    request: Request, session: SessionDep, _: Viewer, name: str, number: int, check: uuid.UUID | None = None
) -> HTMLResponse:
    """Show a version. `check`: the run whose certificate to show. Default: the latest."""
    return page(request, "environments/version.html", _version_page(session, name, number, check))


@router.get("/environments/{name}/versions/{number}/events", response_class=EventSourceResponse)
async def version_events(request: Request, _: Viewer, name: str, number: int) -> AsyncIterator[ServerSentEvent]:
    """Stream the certificate while checks run."""
    blocks = ["certificate"]
    read = partial(_version_page, name=name, number=number)
    async for event in live_blocks(request, (RUNS,), "environments/version.html", blocks, read):
        yield event


def _version_page(session: Session, name: str, number: int, check: uuid.UUID | None = None) -> VersionPage:
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number, with_files=True)
    manifest = Manifest.model_validate(version.manifest)
    checks = queries.check_runs_of(session, environment, version=version)
    newest = checks[0] if checks else None
    certificate = queries.newest_certificate(session, version)
    chosen = queries.get_certificate(session, version, check) if check else certificate
    open_check = newest.run if newest and not newest.run.status.is_over and not check else None
    return VersionPage(
        environment=environment,
        version=version,
        publisher=queries.person_name(session, version.published_by),
        manifest=manifest,
        network=network_state(session, version),
        newest=queries.get_version(session, environment).number,
        certificate=chosen,
        is_older=chosen is not certificate,
        open_check=open_check,
        failed_check=newest.run if newest and newest.run.status.is_over and newest.status is None else None,
        checks=checks,
        policies=() if open_check else policy_options(session, manifest),
    )


@router.get("/environments/{name}/versions/{number}/export.zip")
def export_version(session: SessionDep, _: Viewer, name: str, number: int) -> Response:
    """Download the complete standalone OpenEnv package."""
    version = queries.get_version(session, queries.get_environment(session, name), number, with_files=True)
    files = complete_package(version.files, Manifest.model_validate(version.manifest))
    headers = {"Content-Disposition": f'attachment; filename="{name}-v{version.number}-openenv.zip"'}
    return Response(pack(files, as_on_disk=True), media_type="application/zip", headers=headers)


@router.get("/environments/{name}/diff", response_class=HTMLResponse)
def show_diff(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    """Compare `from` with `to`: version numbers or `draft`. Default: the latest version and the draft."""
    environment = queries.get_environment(session, name)
    numbers = [row.version.number for row in queries.versions_of(session, environment)]
    after = request.query_params.get("to") or DRAFT
    before = request.query_params.get("from") or str(numbers[0] if numbers else DRAFT)
    context = {
        "environment": environment,
        "numbers": numbers,
        "before": before,
        "after": after,
        "files": diff_files(*(queries.files_named(session, environment, name) for name in (before, after))),
    }
    return page(request, "environments/diff.html", context)
