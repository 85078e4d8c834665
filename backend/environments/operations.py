"""Operations on environments: packages, drafts, versions, checks, certificates and network grants."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.domain.environments.audit_coverage import audit_coverage
from backend.domain.environments.diff import diff_files
from backend.domain.environments.packages import MANIFEST_PATH, content_hash, pack
from backend.domain.vocabulary import Role
from backend.environments import drafts, queries, schemas, service
from backend.environments import references as _references  # noqa: F401  how addresses name environments
from backend.environments.certificates import certificate_file, certified_package, public_key, replace_key
from backend.environments.library import COPY, render_template
from backend.environments.network_grants import network_of
from backend.environments.queries import CheckRun
from backend.environments.scaffold import generated_files, with_generated
from backend.environments.tables import Certificate, Environment, EnvironmentDraft, EnvironmentVersion, NetworkGrant
from backend.environments.validation import validate_package
from backend.errors import Conflict, InvalidInput, NotFound
from backend.operations.declaration import operation
from backend.operations.schemas import Download, UpdateLabels
from backend.projects.queries import project_id_of
from backend.team.tables import Person
from backend.web.audit import audit
from backend.web.identity import Actor
from backend.web.paging import Page

_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)


@operation("GET /environments", role=Role.VIEWER, command="env list", tool=True)
def list_environments(
    session: Session, actor: Actor, request: schemas.ListEnvironments
) -> Page[schemas.EnvironmentResponse]:
    """List environments by name, each with its latest version."""
    project_id = project_id_of(session, request.project)
    rows = queries.list_environments(
        session, with_archived=request.archived, project_id=project_id, tag=request.tag or ""
    )
    items = []
    for row in rows:
        latest = _version(row.environment, row.latest, row.latest.publisher) if row.latest else None
        items.append(schemas.EnvironmentResponse.from_row(row.environment, versions=row.versions, latest=latest))
    return Page(items=items)


@operation(
    "POST /environments",
    role=Role.AUTHOR,
    in_project=True,
    status=201,
    tool=True,
    audited=False,
    max_body_size=schemas.MAX_FILES_BODY_BYTES,
    page="/environments/{name}/edit",
    notice="{name} begins as a draft.",
)
def create_environment(session: Session, actor: Actor, request: schemas.CreateEnvironment) -> schemas.EnvironmentDetail:
    """Create an environment with a draft, from a template, a copy of another environment or the given files."""
    if (request.template is None) == (request.files is None):
        raise InvalidInput(fields={"template": "Give either a template or the files."})
    files, template = request.files, request.template or ""
    if files is None and not template.startswith(COPY):
        try:
            files = render_template(template, request.name)
        except KeyError as error:
            raise InvalidInput(fields={"template": "There is no such template."}) from error
    elif files is None:  # `copy:NAME`: the latest version, or the draft if there is none; `copy:NAME@3`: version 3
        known, _, number = template.removeprefix(COPY).partition("@")
        original = queries.find_environment(session, known)
        if original is None or (number and not (number.isdecimal() and len(number) < 10)):
            raise InvalidInput(
                fields={"template": f"There is no environment {template.removeprefix(COPY)[:60]!r} to copy."}
            )
        version = queries.find_version(session, original, int(number) if number else None, with_files=True)
        if version is None and number:
            raise InvalidInput(fields={"template": f"{known} has no version {number}."})
        files = dict(version.files if version else with_generated(queries.get_draft(session, original).files))
        files[MANIFEST_PATH] = _NAME_LINE.sub(f"name: {request.name}", files[MANIFEST_PATH], count=1)
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
    draft = queries.get_draft(session, environment)
    generated = sorted(generated_files(draft.files))
    saved = dict(_saved(environment, draft))
    return schemas.DraftResponse(**saved, files=with_generated(draft.files), generated=generated)


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
    drafts.save_draft(session, actor, environment, request.files, revision)
    return get_draft(session, actor, environment)


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
    return _version(environment, version, actor)


@operation(
    "PATCH /environments/{environment}/labels",
    role=Role.AUTHOR,
    command="env update",
    page="/environments/{name}",
    notice="{name} was changed.",
)
def update_environment(
    session: Session, actor: Actor, environment: Environment, request: UpdateLabels
) -> schemas.EnvironmentDetail:
    """Tag an environment, pin it or write a note about it. Its versions stay as they are."""
    request.apply_to(environment)
    session.flush()
    return _detail(session, environment)


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
    versions = queries.versions_of(session, environment)
    return Page(items=[_version(environment, version, version.publisher) for version in versions])


@operation("GET /environments/{environment}/versions/{number}", role=Role.VIEWER)
def get_version(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.VersionDetail:
    """Show a version with its manifest and files."""
    version = queries.get_version(session, environment, number, with_files=True)
    publisher = session.get(Person, version.published_by) if version.published_by else None
    return schemas.VersionDetail.from_row(version, **dict(_version(environment, version, publisher)))


@operation("GET /environments/{environment}/diff", role=Role.VIEWER, tool=True)
def diff_versions(
    session: Session, actor: Actor, environment: Environment, request: schemas.DiffVersions
) -> schemas.DiffResponse:
    """Compare two versions, or a version and the draft, file by file."""
    old, new = (queries.files_named(session, environment, name) for name in (request.before, request.after))
    return schemas.DiffResponse.model_validate({"files": diff_files(old, new)})


@operation("GET /environments/{environment}/versions/{number}/files", role=Role.VIEWER)
def download_files(session: Session, actor: Actor, environment: Environment, number: int) -> Download:
    """Download the version's files as a zip. The same content always gives the same bytes."""
    version = queries.get_version(session, environment, number, with_files=True)
    data = pack(version.files)
    return Download(f"{environment.name}-v{version.number}.zip", "application/zip", lambda _: iter([data]))


@operation("GET /environments/{environment}/versions/{number}/export", role=Role.VIEWER)
def export_version(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.ExportedPackage:
    """Show the complete OpenEnv package that runs without Proctor: the version's files, generated ones, and the signed
    certificate with its badge if the version was checked."""
    version = queries.get_version(session, environment, number, with_files=True)
    files = certified_package(session, environment, version)
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
    return _certificate(certificate, version)


@operation("GET /environments/{environment}/versions/{number}/certificates", role=Role.VIEWER)
def list_certificates(
    session: Session, actor: Actor, environment: Environment, number: int
) -> Page[schemas.CertificateResponse]:
    """List all certificates of a version, newest first."""
    version = queries.get_version(session, environment, number)
    return Page(items=[_certificate(each, version) for each in queries.certificates_of(session, version)])


def _certificate(certificate: Certificate, version: EnvironmentVersion) -> schemas.CertificateResponse:
    coverage = audit_coverage(certificate.results)
    return schemas.CertificateResponse.from_row(certificate, content_hash=version.content_hash, coverage=coverage)


@operation("GET /environments/{environment}/versions/{number}/certificate/file", role=Role.VIEWER)
def download_certificate(
    session: Session, actor: Actor, environment: Environment, number: int, request: schemas.DownloadCertificate
) -> Download:
    """Download the latest certificate: signed, or in a format for other tools."""
    version = queries.get_version(session, environment, number)
    text, name, media_type = certificate_file(session, environment, version, request.form)
    return Download(name, media_type, lambda _: iter([text.encode()]))


@operation("GET /certificate-key", role=Role.VIEWER, command="certificate key")
def get_certificate_key(session: Session, actor: Actor) -> schemas.CertificateKeyResponse:
    """Show the public key that verifies certificates signed by this installation."""
    return public_key(session)


@operation("POST /certificate-key", role=Role.ADMIN, command="certificate replace-key", status=201)
def replace_certificate_key(session: Session, actor: Actor) -> schemas.CertificateKeyResponse:
    """Create a new key for signing certificates. Certificates signed by the old key stay verifiable with it."""
    replace_key(session)
    return public_key(session)


# Network access


@operation("GET /environments/{environment}/versions/{number}/network", role=Role.VIEWER)
def get_network(session: Session, actor: Actor, environment: Environment, number: int) -> schemas.NetworkResponse:
    """Show which hosts a version requests and whether its servers may reach the network."""
    return network_of(session, queries.get_version(session, environment, number))


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
    network = network_of(session, version)
    if not network.hosts:
        raise Conflict("This version requests no network access. There is nothing to grant.")
    if network.is_closed:
        raise Conflict(
            "The operator of this machine disabled network access for all environments (PROCTOR_ALLOW_NETWORK=none)."
        )
    if not network.is_granted:
        session.add(NetworkGrant(content_hash=version.content_hash, granted_by=actor.person_id))
        session.flush()
        facts = {"environment": environment.name, "version": number, "hosts": network.hosts}
        audit(session, actor, "environment.grant_network", "version", version.id, **facts)
    return network_of(session, version)


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
    network, grant = network_of(session, version), session.get(NetworkGrant, version.content_hash)
    if grant is not None:
        session.delete(grant)
        session.flush()
        facts = {"environment": environment.name, "version": number, "hosts": network.hosts}
        audit(session, actor, "environment.withdraw_network", "version", version.id, **facts)
    return network_of(session, version)


# Responses


def _detail(session: Session, environment: Environment) -> schemas.EnvironmentDetail:
    versions = queries.versions_of(session, environment)
    draft = queries.get_draft(session, environment)
    digest = content_hash(with_generated(draft.files))
    return schemas.EnvironmentDetail.from_row(
        environment,
        versions=len(versions),
        latest=_version(environment, versions[0], versions[0].publisher) if versions else None,
        draft_revision=draft.revision,
        draft_updated_at=draft.updated_at,
        is_draft_published=digest in {version.content_hash for version in versions},
    )


def _version(
    environment: Environment, version: EnvironmentVersion, publisher: Person | Actor | None
) -> schemas.VersionResponse:
    return schemas.VersionResponse.from_row(
        version,
        environment=environment.name,
        published_by=publisher.name if publisher else None,
        columns=version.typed_manifest.columns,
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
