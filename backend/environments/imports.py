"""Imports: a foreign package is stored, inspected by a job, and becomes an environment when an author decides so."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, import_topic
from backend.core.queue import enqueue
from backend.domain.environments.foreign import PackageKind, read_foreign
from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.environments.prompts import render_observation, render_system
from backend.domain.environments.tools import ToolsUnusable, read_tools
from backend.domain.vocabulary import Queue, RunStatus
from backend.environments import service
from backend.environments.drafts import package_errors
from backend.environments.import_package import ReadyPackage, environment_name, make_ready, write_manifest
from backend.environments.import_sources import checked_url, read_zip
from backend.environments.tables import Environment, EnvironmentImport
from backend.errors import Conflict, InvalidInput, NotFound
from backend.web.audit import audit

if TYPE_CHECKING:  # workers read packages too, and never load the web
    from backend.environments.schemas import StartImport
    from backend.web.identity import Actor

REMOTE = "remote"
"""Kind of an external server."""
KINDS = {
    str(PackageKind.OPENENV): "OpenEnv package",
    str(PackageKind.VERIFIERS_V0): "verifiers environment (load_environment)",
    str(PackageKind.VERIFIERS_V1): "verifiers taskset (v1)",
    "git": "git repository",
    REMOTE: "running server",
}
"""Labels of the kinds."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Additions to the package's own metadata."""

    name: str = ""
    path: str = ""
    """Folder of the package in the upload."""
    requires: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def inspect_package(
    files: Mapping[str, bytes], folder: str, options: ImportOptions
) -> tuple[ReadyPackage, ImportReport]:
    """Inspect the files without running them. Raises PackageInvalid."""
    found = read_foreign(files, folder, options.path)
    package = make_ready(found, name=options.name, requires=options.requires, variables=options.variables)
    report = ImportReport(
        kind=str(found.kind),
        notes=package.notes,
        carried=found.carried,
        left_out=found.left_out,
        name=package.name,
        description=str(package.manifest.get("description") or ""),
    )
    return package, report


def store_package(row: EnvironmentImport, package: ReadyPackage, report: ImportReport) -> None:
    row.name, row.kind, row.manifest = package.name, str(package.kind), package.manifest
    row.files = {**package.files, MANIFEST_PATH: probe_manifest(package.manifest)}
    row.report = report.model_dump(mode="json")
    row.block = write_manifest({"proctor": package.block}, "") if package.block else ""


def probe_manifest(manifest: Mapping[str, object], remote: str = "") -> str:
    """Return the manifest with enough resources to measure what the package needs."""
    resources = {"memory_mb": 2048, "sessions": 8, **({"remote": remote} if remote else {})}
    return write_manifest({**manifest, "proctor": {"resources": resources}}, "")


def start_import(
    session: Session, actor: Actor, request: StartImport, archive: bytes | None = None, file_name: str = ""
) -> EnvironmentImport:
    """Queue the inspection of an uploaded package or an external server, or the clone of a repository.

    Raises InvalidInput if the upload is not a package, or this server may not connect to the address.
    """
    options = ImportOptions(request.name.strip(), request.path.strip(), request.requires, request.variables)
    arguments: dict[str, object] = {}
    with package_errors("package"):
        if request.kind == "zip":
            files, folder = read_zip(archive or b"", file_name)
            row = EnvironmentImport(source=request.source or "upload")
            store_package(row, *inspect_package(files, folder, options))
        elif request.kind == "git":
            url, reference = checked_url(request.url), request.reference.strip()
            name = options.name or options.path.rpartition("/")[2] or url.rpartition("/")[2].removesuffix(".git")
            source = f"{url}{'@' + reference if reference else ''} {options.path}".strip()
            row = EnvironmentImport(name=environment_name(name) or "imported", kind="git", source=source)
            row.files, row.manifest, row.report = {}, {}, {}
            arguments = {"url": url, "reference": reference, "wishes": asdict(options)}
        else:
            url = checked_url(request.url)
            name = environment_name(options.name or url.partition("://")[2])
            manifest = {"spec_version": 1, "name": name, "type": "space", "runtime": "fastapi", "app": "server.app:app"}
            readme = f"# {name}\n\nThis environment is an external server at {url}. It has no code here.\n"
            row = EnvironmentImport(name=name, kind=REMOTE, source=url, manifest=manifest)
            row.files = {MANIFEST_PATH: probe_manifest(manifest, url), "README.md": readme}
            row.report = ImportReport(kind=REMOTE, name=name).model_dump(mode="json")
            arguments = {"url": url}
    if not row.name:
        raise InvalidInput(fields={"name": "Give it a name: the package has none."})
    row.source, row.created_by, row.phase = row.source[:2000], actor.person_id, "waiting for a worker"
    session.add(row)
    session.flush()
    audit(session, actor, "import.start", "import", row.id, name=row.name, source=row.source)
    arguments["import_id"] = str(row.id)
    enqueue(session, "environments.import", queue=Queue.CPU, arguments=arguments)
    announce(session, import_topic(row.id))
    return row


def get_import(session: Session, import_id: uuid.UUID, *, with_files: bool = False) -> EnvironmentImport:
    options = [joinedload(EnvironmentImport.environment), joinedload(EnvironmentImport.creator)]
    if with_files:
        options.append(undefer(EnvironmentImport.files))
    statement = select(EnvironmentImport).where(EnvironmentImport.id == import_id).options(*options)
    row = session.scalars(statement).one_or_none()
    if row is None:
        raise NotFound("There is no such import.")
    return row


def recent_imports(session: Session) -> Sequence[EnvironmentImport]:
    """List the latest imports, newest first."""
    statement = (
        select(EnvironmentImport)
        .options(joinedload(EnvironmentImport.environment), joinedload(EnvironmentImport.creator))
        .order_by(EnvironmentImport.created_at.desc(), EnvironmentImport.id.desc())
        .limit(50)
    )
    return session.scalars(statement).all()


def preview(row: EnvironmentImport) -> dict[str, Any]:
    """Return the `problems` of the block, or the first prompt that a model would read with it (`system` and `user`), or
    the `error`. Empty if there is no block yet."""
    shown: dict[str, Any] = {"problems": [], "system": "", "user": "", "error": ""}
    if not row.block:
        return shown
    try:
        manifest = read_manifest(write_manifest(row.manifest, row.block))
    except ManifestInvalid as error:
        above = write_manifest(row.manifest, "").count("\n") + 1
        return shown | {"problems": [replace(each, line=max(1, each.line - above)) for each in error.problems]}
    agent, report = manifest.proctor.agent, ImportReport.model_validate(row.report)
    try:
        listed = agent.action.tools
        tools = read_tools(report.opening.get(listed) or []) if isinstance(listed, str) else tuple(listed or ())
        user = render_observation(agent.observation, report.opening)
        return shown | {"system": render_system(agent, tools), "user": user}
    except (ValueError, ToolsUnusable) as error:
        return shown | {"system": agent.system, "error": str(error)}


def save_block(session: Session, actor: Actor, row: EnvironmentImport, block: str) -> None:
    require_open(row)
    if row.block != block:
        row.block = block.replace("\r\n", "\n")
        audit(session, actor, "import.edit", "import", row.id)
        session.flush()


def create_from_import(session: Session, actor: Actor, row: EnvironmentImport, name: str = "") -> Environment:
    """Create the environment with its draft: all files, and the manifest with the current block."""
    lock = select(EnvironmentImport.environment_id).where(EnvironmentImport.id == row.id).with_for_update()
    row.environment_id = session.scalar(lock)  # two clicks at once make one environment
    require_open(row)
    name = name or row.name
    files = {**row.files, MANIFEST_PATH: write_manifest({**row.manifest, "name": name}, row.block)}
    environment = service.create_environment(session, actor, name, files)
    row.environment_id, row.name = environment.id, environment.name
    audit(session, actor, "import.create", "import", row.id, environment=environment.name)
    session.flush()
    return environment


def require_open(row: EnvironmentImport) -> None:
    if row.environment_id is not None:
        raise Conflict("This import has become an environment already.")
    if row.status is not RunStatus.COMPLETED or not row.files:
        raise Conflict("The inspection of this package did not finish. Import it again.")
