"""Imports: a foreign package is stored, inspected by a job, and becomes an environment when an author decides so."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.events import announce, import_topic
from backend.core.queue import enqueue
from backend.domain.environments.foreign import ForeignPackage, PackageKind, read_foreign
from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.manifest import ManifestInvalid, Problem, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid
from backend.domain.environments.prompts import render_observation, render_system
from backend.domain.environments.proposals import propose
from backend.domain.environments.tools import ToolsUnusable, read_tools
from backend.domain.vocabulary import Queue, RunStatus
from backend.environments import service
from backend.environments.import_package import ReadyPackage, environment_name, make_ready, write_manifest
from backend.environments.import_sources import checked_url
from backend.environments.tables import Environment, EnvironmentImport
from backend.errors import Conflict, InvalidInput, NotFound
from backend.web.audit import audit

if TYPE_CHECKING:  # workers read packages too, and never load the web
    from backend.web.identity import Actor

GIT, REMOTE = "git", "remote"
"""Kinds of imports whose files have not been read yet, and of external servers."""
PROBE_MEMORY_MB = 2048


@dataclass(frozen=True, slots=True)
class Wishes:
    """Additions to the package's own metadata."""

    name: str = ""
    path: str = ""
    """Folder of the package in the upload."""
    requires: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def understand(files: Mapping[str, bytes], folder: str, wishes: Wishes) -> tuple[ReadyPackage, ImportReport]:
    """Inspect the files without running them. Raises PackageInvalid."""
    package = read_foreign(files, folder, wishes.path)
    ready = make_ready(package, name=wishes.name, requires=wishes.requires, variables=wishes.variables)
    return ready, _first_report(package, ready)


def _first_report(package: ForeignPackage, ready: ReadyPackage) -> ImportReport:
    return ImportReport(
        kind=str(package.kind),
        notes=ready.notes,
        carried=package.carried,
        left_out=package.left_out,
        name=ready.name,
        description=str(ready.manifest.get("description") or ""),
    )


def take_in(row: EnvironmentImport, ready: ReadyPackage, report: ImportReport) -> None:
    """Put a package that was understood into its row."""
    row.name, row.kind, row.manifest = ready.name, str(ready.kind), ready.manifest
    row.files = {**ready.files, MANIFEST_PATH: probe_manifest(ready.manifest)}
    row.report = report.model_dump(mode="json")
    row.block = write_manifest({"proctor": ready.block}, "") if ready.block else ""


def probe_manifest(manifest: Mapping[str, Any], remote: str = "") -> str:
    """With room enough to find out what it needs."""
    resources: dict[str, Any] = {"memory_mb": PROBE_MEMORY_MB, "sessions": 8}
    if remote:
        resources["remote"] = remote
    return write_manifest({**manifest, "proctor": {"resources": resources}}, "")


IMPORT_JOB = "environments.import"
MAX_SHOWN = 50


class ImportNotReady(Conflict):
    """The package is still being inspected."""


class AlreadyImported(Conflict):
    """This import has become an environment already."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The prompt that a model would read with this block, as far as it is known."""

    problems: list[Problem]
    system: str = ""
    user: str = ""
    error: str = ""


def import_files(
    session: Session, actor: Actor, files: Mapping[str, bytes], *, folder: str, source: str, wishes: Wishes
) -> EnvironmentImport:
    """Queue the inspection of an uploaded package. Raises InvalidInput if it is not a package."""
    try:
        ready, report = understand(files, folder, wishes)
    except PackageInvalid as error:
        raise _refused(error) from error
    row = _row(actor, ready.name, str(ready.kind), source)
    take_in(row, ready, report)
    return _queue(session, actor, row, {})


def import_repository(session: Session, actor: Actor, url: str, reference: str, wishes: Wishes) -> EnvironmentImport:
    """Queue the clone and inspection of a repository."""
    try:
        url = checked_url(url)
    except PackageInvalid as error:
        raise _refused(error) from error
    name = environment_name(
        wishes.name or wishes.path.rpartition("/")[2] or url.rpartition("/")[2].removesuffix(".git")
    )
    row = _row(actor, name or "imported", GIT, f"{url}{'@' + reference if reference else ''} {wishes.path}".strip())
    return _queue(session, actor, row, {"url": url, "reference": reference, "wishes": _as_json(wishes)})


def import_server(session: Session, actor: Actor, url: str, wishes: Wishes) -> EnvironmentImport:
    """Queue the inspection of an external server."""
    try:
        url = checked_url(url)
    except PackageInvalid as error:
        raise _refused(error) from error
    name = environment_name(wishes.name or url.partition("://")[2])
    manifest = {"spec_version": 1, "name": name, "type": "space", "runtime": "fastapi", "app": "server.app:app"}
    readme = f"# {name}\n\nThis environment is a server that somebody else runs, at {url}. It has no code here.\n"
    row = _row(actor, name, REMOTE, url)
    row.manifest, row.files = manifest, {MANIFEST_PATH: probe_manifest(manifest, url), "README.md": readme}
    row.report = ImportReport(kind=REMOTE, name=name).model_dump(mode="json")
    return _queue(session, actor, row, {"url": url})


# reading


def get_import(session: Session, import_id: uuid.UUID, *, with_files: bool = False) -> EnvironmentImport:
    options = [joinedload(EnvironmentImport.environment), joinedload(EnvironmentImport.creator)]
    if with_files:
        options.append(undefer(EnvironmentImport.files))
    statement = select(EnvironmentImport).where(EnvironmentImport.id == import_id).options(*options)
    row = session.scalars(statement).one_or_none()
    if row is None:
        raise NotFound("There is no such import.")
    return row


def recent_imports(session: Session) -> list[EnvironmentImport]:
    """The newest first."""
    statement = (
        select(EnvironmentImport)
        .options(joinedload(EnvironmentImport.environment), joinedload(EnvironmentImport.creator))
        .order_by(EnvironmentImport.created_at.desc(), EnvironmentImport.id.desc())
        .limit(MAX_SHOWN)
    )
    return list(session.scalars(statement))


def report_of(row: EnvironmentImport) -> ImportReport:
    return ImportReport.model_validate(row.report)


def preview(row: EnvironmentImport) -> Preview:
    """Return the problems of the block and the prompt that it renders."""
    try:
        manifest = read_manifest(write_manifest(row.manifest, row.block))
    except ManifestInvalid as error:
        above = write_manifest(row.manifest, "").count("\n") + 1
        return Preview([Problem(found.message, found.path, max(1, found.line - above)) for found in error.problems])
    agent, report = manifest.proctor.agent, report_of(row)
    try:
        listed = agent.action.tools
        tools = read_tools(report.opening.get(listed) or []) if isinstance(listed, str) else tuple(listed or ())
        user = render_observation(agent.observation, report.opening)
        return Preview([], render_system(agent, tools), user)
    except (ValueError, ToolsUnusable) as error:
        return Preview([], agent.system, "", str(error))


# what the author decides


def map_columns(session: Session, actor: Actor, row: EnvironmentImport, path: str) -> None:
    """Take the columns from this dictionary of the observation and propose a new block; empty: none."""
    _need_open(row)
    report = report_of(row)
    if path and path not in {found.path for found in report.breakdowns}:
        raise InvalidInput(fields={"columns_from": "The report has no such dictionary."})
    row.columns_from = path or None
    row.block = propose(report, row.columns_from)
    audit(session, actor, "import.edit", "import", row.id, columns_from=path)
    session.flush()


def save_block(session: Session, actor: Actor, row: EnvironmentImport, block: str) -> None:
    _need_open(row)
    if row.block != block:
        row.block = block.replace("\r\n", "\n")
        audit(session, actor, "import.edit", "import", row.id)
        session.flush()


def create_from_import(session: Session, actor: Actor, row: EnvironmentImport, name: str = "") -> Environment:
    """Create the environment with its draft: all files, and the manifest with the current block."""
    lock = select(EnvironmentImport.environment_id).where(EnvironmentImport.id == row.id).with_for_update()
    row.environment_id = session.scalar(lock)  # two clicks at once make one environment
    _need_open(row)
    manifest = {**row.manifest, "name": name or row.name}
    files = {**row.files, MANIFEST_PATH: write_manifest(manifest, row.block)}
    environment = service.create_environment(session, actor, manifest["name"], files)
    row.environment_id, row.name = environment.id, environment.name
    audit(session, actor, "import.create", "import", row.id, environment=environment.name)
    session.flush()
    return environment


def _need_open(row: EnvironmentImport) -> None:
    if row.environment_id is not None:
        raise AlreadyImported
    if row.status is not RunStatus.COMPLETED or not row.files:
        raise ImportNotReady("The inspection of this package did not finish. Import it again.")


# rows


def _row(actor: Actor, name: str, kind: str, source: str) -> EnvironmentImport:
    if not name:
        raise InvalidInput(fields={"name": "Give it a name: the package has none."})
    return EnvironmentImport(
        name=name, kind=kind, source=source[:2000], files={}, manifest={}, report={}, created_by=actor.person_id
    )


def _queue(session: Session, actor: Actor, row: EnvironmentImport, arguments: dict[str, Any]) -> EnvironmentImport:
    row.phase = "waiting for a worker"
    session.add(row)
    session.flush()
    audit(session, actor, "import.start", "import", row.id, name=row.name, source=row.source)
    enqueue(session, IMPORT_JOB, queue=Queue.CPU, arguments={"import_id": str(row.id), **arguments})
    announce(session, import_topic(row.id))
    return row


def _as_json(wishes: Wishes) -> dict[str, Any]:
    return {
        "name": wishes.name,
        "path": wishes.path,
        "requires": list(wishes.requires),
        "variables": dict(wishes.variables),
    }


def _refused(error: PackageInvalid) -> InvalidInput:
    message = str(error)
    return InvalidInput(f"{message[0].upper()}{message[1:]}.", {"package": message})


KINDS = {
    str(PackageKind.OPENENV): "OpenEnv package",
    str(PackageKind.VERIFIERS_V0): "verifiers environment (load_environment)",
    str(PackageKind.VERIFIERS_V1): "verifiers taskset (v1)",
    GIT: "git repository",
    REMOTE: "running server",
}
"""In words for a person."""
