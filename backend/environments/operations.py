"""Operations on environments: packages, drafts, versions, checks, certificates and network grants."""

from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.packages import content_hash, pack
from backend.domain.vocabulary import Role
from backend.environments import drafts, network_grants, queries, schemas, service
from backend.environments.diff import diff_files
from backend.environments.export import complete_package
from backend.environments.queries import CheckRun, VersionRow
from backend.environments.scaffold import generated_files, with_generated
from backend.environments.tables import Environment, EnvironmentDraft
from backend.environments.validation import validate_package
from backend.errors import InvalidInput, NotFound
from backend.operations.declaration import operation, reference
from backend.operations.ids import parse_id
from backend.operations.schemas import Download
from backend.web.identity import Actor
from backend.web.paging import Page


@reference(Environment, "Name or id of an environment.")
def environment_named(session: Session, text: str) -> Environment:
    environment_id = parse_id(text)
    by_id = session.get(Environment, environment_id) if environment_id else None
    return by_id or queries.get_environment(session, text)


@operation("GET /environments", role=Role.VIEWER, command="env list", tool=True)
def list_environments(
    session: Session, actor: Actor, request: schemas.ListEnvironments
) -> Page[schemas.EnvironmentResponse]:
    """List environments by name, each with its latest version."""
    rows = queries.list_environments(session, with_archived=request.archived)
    return Page(items=[_summary(row.environment, row.latest, row.versions) for row in rows])


@operation(
    "POST /environments",
    role=Role.AUTHOR,
    status=201,
    tool=True,
    audited=False,
    max_body_size=schemas.MAX_FILES_BODY_BYTES,
)
def create_environment(session: Session, actor: Actor, request: schemas.CreateEnvironment) -> schemas.EnvironmentDetail:
    """Create an environment with a draft, from a template, a copy of another environment or the given files."""
    if (request.template is None) == (request.files is None):
        raise InvalidInput(fields={"template": "Give either a template or the files."})
    files = request.files
    if files is None:
        files = service.starting_files(session, request.template or "", request.name)
    return _detail(session, service.create_environment(session, actor, request.name, files))


@operation(
    "POST /environments/validate",
    role=Role.VIEWER,
    tool=True,
    audited=False,
    max_body_size=schemas.MAX_FILES_BODY_BYTES,
)
def validate_files(session: Session, actor: Actor, request: schemas.ValidatePackage) -> schemas.ValidationResponse:
    """List the problems of a package without storing it or running its code."""
    return _validation(request.files, request.name)


@operation("GET /environments/{environment}", role=Role.VIEWER, command="env show", tool=True)
def get_environment(session: Session, actor: Actor, environment: Environment) -> schemas.EnvironmentDetail:
    """Show an environment with its latest version and the state of its draft."""
    return _detail(session, environment)


# The draft


@operation("GET /environments/{environment}/draft", role=Role.VIEWER, tool=True)
def get_draft(session: Session, actor: Actor, environment: Environment) -> schemas.DraftResponse:
    """Show all files of the draft and its problems."""
    return _whole_draft(environment, queries.get_draft(session, environment))


@operation(
    "PUT /environments/{environment}/draft", role=Role.AUTHOR, audited=False, max_body_size=schemas.MAX_FILES_BODY_BYTES
)
def put_draft(
    session: Session, actor: Actor, environment: Environment, request: schemas.ReplaceDraft
) -> schemas.DraftResponse:
    """Replace all files of the draft."""
    revision = request.revision
    if revision is None:
        revision = drafts.locked_draft(session, environment).revision
    return _whole_draft(environment, drafts.save_draft(session, actor, environment, request.files, revision))


@operation("GET /environments/{environment}/draft/file", role=Role.VIEWER, tool=True)
def read_draft_file(
    session: Session, actor: Actor, environment: Environment, request: schemas.ReadDraftFile
) -> schemas.DraftFile:
    """Read one file of the draft."""
    draft = queries.get_draft(session, environment)
    package = with_generated(draft.files)
    if request.path not in package:
        drafts.require_file(draft, request.path)
    return schemas.DraftFile(path=request.path, text=package[request.path], revision=draft.revision)


@operation(
    "PUT /environments/{environment}/draft/file",
    role=Role.AUTHOR,
    tool=True,
    audited=False,
    max_body_size=schemas.MAX_FILES_BODY_BYTES,
)
def write_draft_file(
    session: Session, actor: Actor, environment: Environment, request: schemas.WriteDraftFile
) -> schemas.DraftSaved:
    """Create or replace one file of the draft, and list the draft's problems afterward."""
    draft = drafts.locked_draft(session, environment)
    if request.revision is not None:
        drafts.refuse_unseen(draft.revision, request.revision)
    files = {**draft.files, request.path: request.text.replace("\r\n", "\n")}
    return _saved(environment, drafts.write_draft(session, actor, draft, files))


@operation("DELETE /environments/{environment}/draft/file", role=Role.AUTHOR, status=200, tool=True, audited=False)
def delete_draft_file(
    session: Session, actor: Actor, environment: Environment, request: schemas.DeleteDraftFile
) -> schemas.DraftSaved:
    """Delete one file of the draft, and list the draft's problems afterward."""
    draft = drafts.locked_draft(session, environment)
    if request.revision is not None:
        drafts.refuse_unseen(draft.revision, request.revision)
    drafts.require_file(draft, request.path)
    mark = drafts.text_mark(draft.files[request.path])
    return _saved(environment, drafts.delete_file(session, actor, environment, request.path, mark=mark))


# Versions


@operation("POST /environments/{environment}/publish", role=Role.AUTHOR, status=201, tool=True, audited=False)
def publish(
    session: Session, actor: Actor, environment: Environment, request: schemas.PublishVersion
) -> schemas.VersionResponse:
    """Publish the draft as the next version and run its checks."""
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


@operation(
    "POST /environments/{environment}/archive",
    role=Role.AUTHOR,
    command="env archive",
    page="/environments/{name}",
    notice="{name} is archived. Its versions and runs are kept.",
)
def archive_environment(session: Session, actor: Actor, environment: Environment) -> schemas.EnvironmentDetail:
    """Archive an environment. It disappears from lists and choices; its versions, runs and rollouts are kept."""
    environment.archived_at = environment.archived_at or datetime.now(UTC)
    session.flush()
    return _detail(session, environment)


@operation(
    "POST /environments/{environment}/restore",
    role=Role.AUTHOR,
    command="env restore",
    page="/environments/{name}",
    notice="{name} is no longer archived.",
)
def restore_environment(session: Session, actor: Actor, environment: Environment) -> schemas.EnvironmentDetail:
    """Take an environment out of the archive."""
    environment.archived_at = None
    session.flush()
    return _detail(session, environment)


@operation("GET /environments/{environment}/versions", role=Role.VIEWER, command="env versions", tool=True)
def list_versions(session: Session, actor: Actor, environment: Environment) -> Page[schemas.VersionResponse]:
    """List the published versions, newest first."""
    return Page(items=[_version(environment, row) for row in queries.versions_of(session, environment)])


@operation("GET /environments/{environment}/versions/{number}", role=Role.VIEWER)
def get_version(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.VersionDetail:
    """Show a version with its manifest and files."""
    version = queries.get_version(session, environment, number, with_files=True)
    certificate = queries.newest_certificate(session, version)
    publisher = queries.person_name(session, version.published_by)
    row = VersionRow(version, publisher, certificate.status if certificate else None)
    return schemas.VersionDetail.from_row(version, **dict(_version(environment, row)))


@operation("GET /environments/{environment}/diff", role=Role.VIEWER, tool=True)
def diff_versions(
    session: Session, actor: Actor, environment: Environment, request: schemas.DiffVersions
) -> schemas.DiffResponse:
    """Compare two versions, or a version and the draft, file by file."""
    old, new = (queries.files_named(session, environment, name) for name in (request.before, request.after))
    return schemas.DiffResponse(files=[schemas.FileDiffResponse.of(each) for each in diff_files(old, new)])


@operation("GET /environments/{environment}/versions/{number}/files", role=Role.VIEWER)
def download_files(session: Session, actor: Actor, environment: Environment, number: int) -> Download:
    """Download the version's files as a zip. The same content always gives the same bytes."""
    version = queries.get_version(session, environment, number, with_files=True)
    data = pack(version.files)
    return Download(f"{environment.name}-v{version.number}.zip", "application/zip", lambda _: iter([data]))


@operation("GET /environments/{environment}/versions/{number}/export", role=Role.VIEWER)
def export_version(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.ExportedPackage:
    """Show the complete OpenEnv package that runs without Proctor: the version's files and generated ones."""
    version = queries.get_version(session, environment, number, with_files=True)
    files = complete_package(version.files, Manifest.model_validate(version.manifest))
    added = sorted(path for path in files if files[path] != version.files.get(path))
    return schemas.ExportedPackage(files=files, added=added, content_hash=version.content_hash)


# Checks and certificates


@operation(
    "POST /environments/{environment}/versions/{number}/checks",
    role=Role.AUTHOR,
    status=201,
    tool=True,
    audited=False,
    page="/environments/{environment}/versions/{number}",
    notice="The checks are queued.",
)
def start_checks(
    session: Session, actor: Actor, environment: Environment, number: int, request: schemas.StartChecks
) -> schemas.CheckRunResponse:
    """Queue the checks of a version. If they are already running, their run is returned."""
    version = queries.get_version(session, environment, number)
    run = service.start_check(session, actor, version, environment.name, policy=request.policy)
    return _check_run(CheckRun(run, None, version.number))


@operation("GET /environments/{environment}/versions/{number}/checks", role=Role.VIEWER)
def list_checks(
    session: Session, actor: Actor, environment: Environment, number: int
) -> Page[schemas.CheckRunResponse]:
    """List the latest check runs of a version, newest first."""
    version = queries.get_version(session, environment, number)
    return Page(items=[_check_run(check) for check in queries.check_runs_of(session, environment, version=version)])


@operation("GET /environments/{environment}/versions/{number}/certificate", role=Role.VIEWER, tool=True)
def get_certificate(
    session: Session, actor: Actor, environment: Environment, number: int
) -> schemas.CertificateResponse:
    """Show the latest certificate with the result of every check."""
    version = queries.get_version(session, environment, number)
    certificate = queries.newest_certificate(session, version)
    if certificate is None:
        raise NotFound(f"{environment.name} v{number} has no certificate yet. Run its checks.")
    return schemas.CertificateResponse.from_row(certificate, content_hash=version.content_hash)


@operation("GET /environments/{environment}/versions/{number}/certificates", role=Role.VIEWER)
def list_certificates(
    session: Session, actor: Actor, environment: Environment, number: int
) -> Page[schemas.CertificateResponse]:
    """List all certificates of a version, newest first."""
    version = queries.get_version(session, environment, number)
    certificates = queries.certificates_of(session, version)
    digest = version.content_hash
    return Page(items=[schemas.CertificateResponse.from_row(each, content_hash=digest) for each in certificates])


# Network access


@operation("GET /environments/{environment}/versions/{number}/network", role=Role.VIEWER)
def get_network(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.NetworkResponse:
    """Show which hosts a version requests and whether its servers may reach the network."""
    version = queries.get_version(session, environment, number)
    return schemas.NetworkResponse.of(network_grants.network_state(session, version))


@operation(
    "PUT /environments/{environment}/versions/{number}/network",
    role=Role.ADMIN,
    audited=False,
    page="/environments/{environment}/versions/{number}",
    notice="New servers of this version have network access.",
)
def grant_network(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.NetworkResponse:
    """Grant network access to the servers of exactly this version."""
    version = queries.get_version(session, environment, number)
    return schemas.NetworkResponse.of(network_grants.grant_network(session, actor, version, environment.name))


@operation(
    "DELETE /environments/{environment}/versions/{number}/network",
    role=Role.ADMIN,
    status=200,
    audited=False,
    page="/environments/{environment}/versions/{number}",
    notice="New servers of this version have no network access.",
)
def withdraw_network(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.NetworkResponse:
    """Withdraw network access. Running episodes finish; new servers start without it."""
    version = queries.get_version(session, environment, number)
    return schemas.NetworkResponse.of(network_grants.withdraw_network(session, actor, version, environment.name))


# Responses


def _summary(environment: Environment, latest: VersionRow | None, versions: int) -> schemas.EnvironmentResponse:
    newest = _version(environment, latest) if latest else None
    return schemas.EnvironmentResponse.from_row(environment, versions=versions, latest=newest)


def _detail(session: Session, environment: Environment) -> schemas.EnvironmentDetail:
    versions = queries.versions_of(session, environment)
    draft = queries.get_draft(session, environment)
    return schemas.EnvironmentDetail(
        **dict(_summary(environment, versions[0] if versions else None, len(versions))),
        draft_revision=draft.revision,
        draft_updated_at=draft.updated_at,
        is_draft_published=service.is_published(draft, [row.version for row in versions]),
    )


def _version(environment: Environment, row: VersionRow) -> schemas.VersionResponse:
    return schemas.VersionResponse.from_row(
        row.version,
        environment=environment.name,
        certificate=row.certificate,
        published_by=row.publisher,
        columns=row.manifest.columns,
    )


def _whole_draft(environment: Environment, draft: EnvironmentDraft) -> schemas.DraftResponse:
    return schemas.DraftResponse(
        **dict(_saved(environment, draft)),
        files=with_generated(draft.files),
        generated=sorted(generated_files(draft.files)),
    )


def _saved(environment: Environment, draft: EnvironmentDraft) -> schemas.DraftSaved:
    validation = _validation(draft.files, environment.name)
    return schemas.DraftSaved.from_row(draft, environment=environment.name, validation=validation)


def _validation(files: Mapping[str, str], name: str | None) -> schemas.ValidationResponse:
    found = validate_package(files, name)
    has_no_package = any(problem.path == "" for problem in found.problems)
    return schemas.ValidationResponse.from_row(
        found,
        columns=found.manifest.columns if found.manifest else [],
        content_hash="" if has_no_package else content_hash(with_generated(files)),
    )


def _check_run(check: CheckRun) -> schemas.CheckRunResponse:
    return schemas.CheckRunResponse.from_row(
        check.run,
        run_id=check.run.id,
        version=check.version_number,
        policy=check.run.configuration.get("reference", {}).get("name"),
        certificate=check.status,
    )
