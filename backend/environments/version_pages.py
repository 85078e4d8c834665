"""Pages of one published version: its files, its certificate as it comes about, what changed, and its zip."""

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import RUNS
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import pack
from backend.environments import queries
from backend.environments.diff import FileDiff, diff_files
from backend.environments.export import complete_package
from backend.environments.network_grants import NetworkState, network_state
from backend.environments.queries import DRAFT, CheckRun
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.policies.queries import PolicyOption, policy_options
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page
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
    """The certificate is not the version's newest."""
    open_check: Run | None
    failed_check: Run | None
    """The newest check, when it ended without a certificate."""
    checks: Sequence[CheckRun]
    policies: Sequence[PolicyOption]
    """Policies that the tasks may be measured with; none while checks run."""

    @property
    def is_over(self) -> bool:
        return self.open_check is None


@dataclass(frozen=True, slots=True)
class DiffPage:
    environment: Environment
    numbers: Sequence[int]
    before: str
    after: str
    files: Sequence[FileDiff]


@router.get("/environments/{name}/versions/{number}", response_class=HTMLResponse)
def show_version(
    request: Request, session: SessionDep, _: Viewer, name: str, number: int, check: uuid.UUID | None = None
) -> HTMLResponse:
    """`check`: the run whose certificate is to be shown; by default the newest."""
    return page(request, "environments/version.html", _version_page(session, name, number, check))


@router.get("/environments/{name}/versions/{number}/events", response_class=EventSourceResponse)
async def version_events(request: Request, _: Viewer, name: str, number: int) -> AsyncIterator[ServerSentEvent]:
    """The certificate as it comes about."""

    def read(session: Session) -> VersionPage:
        return _version_page(session, name, number)

    async for event in live_blocks(request, (RUNS,), "environments/version.html", ["certificate"], read):
        yield event


@router.get("/environments/{name}/versions/{number}/package.zip")
def download_version(session: SessionDep, _: Viewer, name: str, number: int) -> Response:
    version = queries.get_version(session, queries.get_environment(session, name), number, with_files=True)
    headers = {"Content-Disposition": f'attachment; filename="{name}-v{version.number}.zip"'}
    return Response(pack(version.files), media_type="application/zip", headers=headers)


@router.get("/environments/{name}/versions/{number}/export.zip")
def export_version(session: SessionDep, _: Viewer, name: str, number: int) -> Response:
    """Download the complete standalone OpenEnv package."""
    version = queries.get_version(session, queries.get_environment(session, name), number, with_files=True)
    files = complete_package(version.files, Manifest.model_validate(version.manifest))
    headers = {"Content-Disposition": f'attachment; filename="{name}-v{version.number}-openenv.zip"'}
    return Response(pack(files, as_on_disk=True), media_type="application/zip", headers=headers)


@router.get("/environments/{name}/diff", response_class=HTMLResponse)
def show_diff(request: Request, session: SessionDep, _: Viewer, name: str) -> HTMLResponse:
    """`from` and `to` are version numbers or `draft`; by default the newest version and the draft."""
    environment = queries.get_environment(session, name)
    numbers = [row.version.number for row in queries.versions_of(session, environment)]
    asked = request.query_params
    after = asked.get("to") or DRAFT
    before = asked.get("from") or str(numbers[0] if numbers else DRAFT)
    files = diff_files(*(queries.files_named(session, environment, name) for name in (before, after)))
    return page(request, "environments/diff.html", DiffPage(environment, numbers, before, after, files))


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
