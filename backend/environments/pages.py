"""Pages of environments: the list, the form for a new one, the overview, and published versions."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import contains_eager, joinedload

from backend.core.events import RUNS
from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.environments.diff import diff_files
from backend.domain.environments.packages import content_hash, pack
from backend.domain.vocabulary import RunKind
from backend.environments import queries
from backend.environments.certificates import certified_package
from backend.environments.fields import ENVIRONMENT_TABLE
from backend.environments.library import COPY, TEMPLATES, Template
from backend.environments.network_grants import network_of
from backend.environments.queries import DRAFT
from backend.environments.scaffold import with_generated
from backend.environments.schemas import EnvironmentListQuery
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.errors import NotFound
from backend.policies.queries import policy_options
from backend.rollouts.item_list import item_list
from backend.rollouts.tables import Listing
from backend.runs.tables import Run
from backend.web.dependencies import ElsewhereAuthor, SessionDep, Viewer
from backend.web.page import page
from backend.web.streams import live_page

router = APIRouter()


@router.get("/environments", response_class=HTMLResponse)
def list_environments(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    wanted: Annotated[EnvironmentListQuery, Query()],
    show: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006
    deleted_view: uuid.UUID | None = None,
) -> HTMLResponse:
    listed = item_list(
        session,
        actor,
        ENVIRONMENT_TABLE,
        Listing.ENVIRONMENTS,
        wanted,
        show,
        lambda query, columns: queries.search_environments(session, query, columns, actor.project_id),
    )
    return page(request, "environments/list.html", {**listed, "deleted_view": deleted_view})


@router.get("/environments/new", response_class=HTMLResponse)
def new_environment(
    request: Request, session: SessionDep, _: ElsewhereAuthor, template: str = "", name: str = ""
) -> HTMLResponse:
    """Offer the templates, a copy of each published environment, and the requested fork of a version."""
    points = [*TEMPLATES]
    if template.startswith(COPY) and "@" in template:
        original, number = template.removeprefix(COPY).split("@", 1)
        points.append(Template(template, f"Fork of {original} v{number}", "Exactly this version's files."))
    for environment in [row.environment for row in queries.list_environments(session) if row.latest]:
        points.append(Template(COPY + environment.name, f"Copy of {environment.name}", environment.description))
    context = {"starting_points": points, "name": name, "template": template or points[0].name}
    return page(request, "environments/new.html", context)


@router.get("/environments/{name}", response_class=HTMLResponse)
def show_environment(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    environment = queries.get_environment(session, name)
    draft = queries.get_draft(session, environment)
    versions = queries.versions_of(session, environment)
    latest = versions[0] if versions else None
    validation, digest = validate_package(draft.files, environment.name), content_hash(with_generated(draft.files))
    runs = (  # checks and hand play have separate lists
        select(Run)
        .join(Run.version)
        .where(
            EnvironmentVersion.environment_id == environment.id, Run.kind.in_([RunKind.EVALUATION, RunKind.TRAINING])
        )
        .options(contains_eager(Run.version), joinedload(Run.policy), joinedload(Run.creator))
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(10)
    )
    context = {
        "environment": environment,
        "latest": latest,
        "manifest": latest.typed_manifest if latest else validation.manifest,
        "problems": validation.problems,
        "draft": draft,
        "draft_author": queries.person_name(session, draft.updated_by),
        "is_draft_published": digest in {version.content_hash for version in versions},
        "versions": versions,
        "checks": queries.check_runs_of(session, environment, limit=10),
        "runs": session.scalars(runs).all(),
        "readme": draft.files.get("README.md", ""),
    }
    return page(request, "environments/overview.html", context)


@live_page(router, "/environments/{name}/versions/{number}", "environments/version.html", "certificate", topics=[RUNS])
def show_version(
    session: SessionDep, _: Viewer, name: str, number: int, check: uuid.UUID | None = None
) -> dict[str, object]:
    """Show a version. `check`: the run whose certificate to show. Default: the latest."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number, with_files=True)
    manifest = version.typed_manifest
    checks = queries.check_runs_of(session, environment, version=version)
    newest = checks[0] if checks else None
    chosen = latest = queries.newest_certificate(session, version)
    if check:
        of_check = select(Certificate).where(Certificate.version_id == version.id, Certificate.run_id == check)
        chosen = session.scalars(of_check).one_or_none()
        if chosen is None:
            raise NotFound(f"The run {check} made no certificate of this version.")
    open_check = newest.run if newest and not newest.run.status.is_over and not check else None
    return {
        "environment": environment,
        "version": version,
        "publisher": queries.person_name(session, version.published_by),
        "manifest": manifest,
        "network": network_of(session, version),
        "newest": queries.get_version(session, environment).number,
        "certificate": chosen,
        "coverage": audit_coverage(chosen.results) if chosen else None,
        "is_older": chosen is not latest,  # whether the version has a newer certificate
        "open_check": open_check,
        # the latest check run, if it ended without a certificate
        "failed_check": newest.run if newest and newest.run.status.is_over and newest.status is None else None,
        "checks": checks,
        # policies that can measure the tasks
        "policies": () if open_check else policy_options(session, manifest),
        "is_over": open_check is None,
    }


@router.get("/environments/{name}/versions/{number}/export.zip")
def export_version(session: SessionDep, _: Viewer, name: str, number: int) -> Response:
    """Download the complete standalone OpenEnv package."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number, with_files=True)
    files = certified_package(session, environment, version)
    headers = {"Content-Disposition": f'attachment; filename="{name}-v{version.number}-openenv.zip"'}
    return Response(pack(files, as_on_disk=True), media_type="application/zip", headers=headers)


@router.get("/environments/{name}/diff", response_class=HTMLResponse)
def show_diff(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    """Compare `from` with `to`: version numbers or `draft`. Default: the latest version and the draft."""
    environment = queries.get_environment(session, name)
    numbers = [version.number for version in queries.versions_of(session, environment)]
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
