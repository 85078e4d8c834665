"""Environments for scripts: the same as the pages, in JSON."""

from fastapi import APIRouter
from fastapi.responses import Response
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash, pack
from backend.environments import (
    drafts,
    queries,
    service,
)
from backend.environments.export import complete_package
from backend.environments.queries import CheckRun, VersionRow
from backend.environments.responses import (
    MAX_FILES_BODY_BYTES,
    CertificateOut,
    CheckIn,
    CheckRunOut,
    DraftIn,
    DraftOut,
    EnvironmentDetail,
    EnvironmentOut,
    ExportedPackage,
    FilesIn,
    NewEnvironmentIn,
    ProblemOut,
    PublishIn,
    ValidationOut,
    VersionDetail,
    VersionOut,
    Weighted,
)
from backend.environments.scaffold import generated_files, with_generated
from backend.environments.starting_points import starting_files
from backend.environments.tables import Certificate, Environment, EnvironmentDraft, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.errors import InvalidInput, NotFound
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["environments"])


@router.get("/environments")
def list_environments(session: SessionDep, _: Viewer, archived: bool = False) -> Page[EnvironmentOut]:
    """All environments by name, in one page."""
    rows = queries.list_environments(session, with_archived=archived)
    return Page(items=[_environment(row.environment, row.latest, row.versions) for row in rows])


@router.post("/environments", status_code=201, max_body_size=MAX_FILES_BODY_BYTES)
def create_environment(request: NewEnvironmentIn, session: SessionDep, actor: Author) -> EnvironmentDetail:
    """A new environment with its draft; nothing is published yet."""
    if (request.template is None) == (request.files is None):
        raise InvalidInput(fields={"template": "Give either a template or the files."})
    files = request.files
    if files is None:
        files = starting_files(session, request.template or "", request.name)
    return _detail(session, service.create_environment(session, actor, request.name, files))


@router.post("/environments/validate", max_body_size=MAX_FILES_BODY_BYTES)
def validate_files(request: FilesIn, _: Viewer) -> ValidationOut:
    """Problems of any package, without storing it or running its code."""
    return _validation(request.files, request.name)


@router.get("/environments/{name}")
def get_environment(name: str, session: SessionDep, _: Viewer) -> EnvironmentDetail:
    return _detail(session, queries.get_environment(session, name))


@router.get("/environments/{name}/draft")
def get_draft(name: str, session: SessionDep, _: Viewer) -> DraftOut:
    environment = queries.get_environment(session, name)
    return _draft(environment, queries.get_draft(session, environment))


@router.put("/environments/{name}/draft", max_body_size=MAX_FILES_BODY_BYTES)
def put_draft(name: str, request: DraftIn, session: SessionDep, actor: Author) -> DraftOut:
    """Replace all files of the draft."""
    environment = queries.get_environment(session, name)
    revision = request.revision
    if revision is None:
        revision = drafts.locked_draft(session, environment).revision
    return _draft(environment, drafts.save_draft(session, actor, environment, request.files, revision))


@router.post("/environments/{name}/publish", status_code=201)
def publish(name: str, request: PublishIn, session: SessionDep, actor: Author) -> VersionOut:
    """Make the draft the next version."""
    environment = queries.get_environment(session, name)
    version = service.publish_version(
        session,
        actor,
        environment,
        notes=request.notes,
        revision=request.revision,
        check=request.check,
        regrade=request.regrade,
    )
    return _version(environment, VersionRow(version, actor.name, None))


@router.post("/environments/{name}/archive")
def archive(name: str, session: SessionDep, actor: Author) -> EnvironmentDetail:
    environment = queries.get_environment(session, name)
    service.archive_environment(session, actor, environment)
    return _detail(session, environment)


@router.post("/environments/{name}/restore")
def restore(name: str, session: SessionDep, actor: Author) -> EnvironmentDetail:
    environment = queries.get_environment(session, name)
    service.restore_environment(session, actor, environment)
    return _detail(session, environment)


@router.get("/environments/{name}/versions")
def list_versions(name: str, session: SessionDep, _: Viewer) -> Page[VersionOut]:
    """Newest first, in one page."""
    environment = queries.get_environment(session, name)
    return Page(items=[_version(environment, row) for row in queries.versions_of(session, environment)])


@router.get("/environments/{name}/versions/{number}")
def get_version(name: str, number: int, session: SessionDep, _: Viewer) -> VersionDetail:
    """A version with its files."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number, with_files=True)
    certificate = queries.newest_certificate(session, version)
    publisher = queries.person_name(session, version.published_by)
    shown = _version(environment, VersionRow(version, publisher, certificate.status if certificate else None))
    return VersionDetail(**shown.model_dump(), manifest=version.manifest, files=version.files)


@router.get("/environments/{name}/versions/{number}/files", response_class=Response)
def download_files(name: str, number: int, session: SessionDep, _: Viewer) -> Response:
    """The version's files as a zip: the same bytes for the same content."""
    version = queries.get_version(session, queries.get_environment(session, name), number, with_files=True)
    headers = {"Content-Disposition": f'attachment; filename="{name}-v{version.number}.zip"'}
    return Response(pack(version.files), media_type="application/zip", headers=headers)


@router.get("/environments/{name}/versions/{number}/export")
def export_version(name: str, number: int, session: SessionDep, _: Viewer) -> ExportedPackage:
    """The complete OpenEnv package that runs by itself: the version's files, and what those lack."""
    version = queries.get_version(session, queries.get_environment(session, name), number, with_files=True)
    files = complete_package(version.files, Manifest.model_validate(version.manifest))
    added = sorted(path for path in files if files[path] != version.files.get(path))
    return ExportedPackage(files=files, added=added, content_hash=version.content_hash)


@router.post("/environments/{name}/versions/{number}/checks", status_code=201)
def start_checks(
    name: str, number: int, session: SessionDep, actor: Author, request: CheckIn | None = None
) -> CheckRunOut:
    """Queue the checks; while some are running, theirs is the answer."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number)
    policy = request.policy if request else ""
    run = service.start_check(session, actor, version, environment.name, policy=policy)
    return _check_run(CheckRun(run, None, version.number))


@router.get("/environments/{name}/versions/{number}/checks")
def list_checks(name: str, number: int, session: SessionDep, _: Viewer) -> Page[CheckRunOut]:
    """The newest runs of the checks, newest first."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number)
    return Page(items=[_check_run(check) for check in queries.check_runs_of(session, environment, version=version)])


@router.get("/environments/{name}/versions/{number}/certificate")
def get_certificate(name: str, number: int, session: SessionDep, _: Viewer) -> CertificateOut:
    """The newest certificate with every check."""
    version = queries.get_version(session, queries.get_environment(session, name), number)
    certificate = queries.newest_certificate(session, version)
    if certificate is None:
        raise NotFound(f"{name} v{number} has no certificate yet: run its checks.")
    return _certificate(version, certificate)


@router.get("/environments/{name}/versions/{number}/certificates")
def list_certificates(name: str, number: int, session: SessionDep, _: Viewer) -> Page[CertificateOut]:
    """All that were made of this version, newest first, in one page."""
    version = queries.get_version(session, queries.get_environment(session, name), number)
    return Page(items=[_certificate(version, row) for row in queries.certificates_of(session, version)])


def _check_run(check: CheckRun) -> CheckRunOut:
    run = check.run
    policy = run.configuration.get("reference", {}).get("name")
    return CheckRunOut(
        run_id=run.id, status=run.status, version=check.version_number, policy=policy, certificate=check.status
    )


def _certificate(version: EnvironmentVersion, certificate: Certificate) -> CertificateOut:
    return CertificateOut(
        id=certificate.id,
        run_id=certificate.run_id,
        status=certificate.status,
        created_at=certificate.created_at,
        content_hash=version.content_hash,
        results=certificate.results,
    )


def _environment(environment: Environment, latest: VersionRow | None, versions: int) -> EnvironmentOut:
    return EnvironmentOut(
        name=environment.name,
        description=environment.description,
        is_built_in=environment.is_built_in,
        created_at=environment.created_at,
        archived_at=environment.archived_at,
        versions=versions,
        latest=_version(environment, latest) if latest else None,
    )


def _detail(session: Session, environment: Environment) -> EnvironmentDetail:
    versions = queries.versions_of(session, environment)
    draft = queries.get_draft(session, environment)
    shown = _environment(environment, versions[0] if versions else None, len(versions))
    return EnvironmentDetail(
        **shown.model_dump(),
        draft_revision=draft.revision,
        draft_updated_at=draft.updated_at,
        is_draft_published=service.is_published(draft, [row.version for row in versions]),
    )


def _version(environment: Environment, row: VersionRow) -> VersionOut:
    version = row.version
    return VersionOut(
        id=version.id,
        environment=environment.name,
        number=version.number,
        content_hash=version.content_hash,
        certificate=row.certificate,
        notes=version.notes,
        published_by=row.publisher,
        published_at=version.published_at,
        columns=_columns(row.manifest),
    )


def _draft(environment: Environment, draft: EnvironmentDraft) -> DraftOut:
    return DraftOut(
        environment=environment.name,
        revision=draft.revision,
        updated_at=draft.updated_at,
        files=drafts.package_of(draft),
        generated=sorted(generated_files(draft.files)),
        validation=_validation(draft.files, environment.name),
    )


def _validation(files: dict[str, str], name: str | None) -> ValidationOut:
    found = validate_package(files, name)
    problems = [ProblemOut.model_validate(problem, from_attributes=True) for problem in found.problems]
    columns = _columns(found.manifest) if found.manifest else []
    digest = content_hash(with_generated(files)) if not any(problem.path == "" for problem in found.problems) else ""
    return ValidationOut(is_publishable=found.is_publishable, problems=problems, columns=columns, content_hash=digest)


def _columns(manifest: Manifest) -> list[Weighted]:
    return [Weighted.model_validate(column, from_attributes=True) for column in manifest.columns]
