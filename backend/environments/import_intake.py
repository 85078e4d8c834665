"""Taking a foreign package in: understood from its files alone, put into its row, ready to be looked at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.environments.foreign import ForeignPackage, read_foreign
from backend.domain.environments.import_report import FileLeftOut, ImportReport
from backend.domain.environments.packages import MANIFEST_PATH
from backend.environments.import_package import ReadyPackage, make_ready, write_manifest
from backend.environments.tables import EnvironmentImport

GIT, REMOTE = "git", "remote"
"""Kinds of imports whose files are not there yet, and of servers that somebody else runs."""
PROBE_MEMORY_MB = 2048


@dataclass(frozen=True, slots=True)
class Wishes:
    """What whoever imports adds to what the package says of itself."""

    name: str = ""
    path: str = ""
    """Where the package lies in what was sent."""
    requires: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def understand(files: Mapping[str, bytes], folder: str, wishes: Wishes) -> tuple[ReadyPackage, ImportReport]:
    """What the files are, without running them. Raises PackageInvalid."""
    package = read_foreign(files, folder, wishes.path)
    ready = make_ready(package, name=wishes.name, requires=wishes.requires, variables=wishes.variables)
    return ready, _first_report(package, ready)


def _first_report(package: ForeignPackage, ready: ReadyPackage) -> ImportReport:
    return ImportReport(
        kind=str(package.kind),
        notes=ready.notes,
        carried=package.carried,
        left_out=[FileLeftOut(path=left.path, size=left.size, why=left.why) for left in package.left_out],
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
