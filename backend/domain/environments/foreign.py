"""Find a package in files that others wrote: its root, its kind, and the files that can be imported.

Nothing is executed. Every skipped file is listed with a reason.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from backend.domain.environments.import_report import SkippedFile
from backend.domain.environments.packages import (
    MANIFEST_PATH,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_PACKAGE_BYTES,
    PackageInvalid,
    binary_as_text,
    is_plain_path,
)

MAX_BINARY_BYTES = 400_000
MAX_BINARIES_BYTES = 2_000_000
"""Maximum size of one binary file, and of all of them."""
MAX_NAMES = 4_000
"""Maximum number of files in an upload before filtering."""

_IGNORED = re.compile(
    r"(^|/)(\.git|__pycache__|\.?venv|node_modules|outputs|\.(pytest|ruff)_cache|[^/]*\.egg-info)(/|$)"
    r"|(^|/)((uv|poetry)\.lock|\.DS_Store|\.gitignore|\.gitattributes|\.dockerignore|[^/]+\.pyc)$"
)
"""Files that tools made, which are not even listed."""
_SECRET = re.compile(r"(^|/)(\.env(\..*)?|id_[a-z0-9]+|.*\.(pem|key|p12|pfx)|\.netrc|\.pypirc|credentials)$")
_EXAMPLE = re.compile(r"\.env\.(example|sample|template)$")
_MEDIA = {".png", ".jpg", ".jpeg", ".gif", ".svg", ".mp4", ".mov", ".webp", ".ico", ".pdf", ".ipynb"}
"""Images and documents, skipped unless the code names them."""
_OPTIONAL_FOLDERS = {"tests", "test", "docs", "examples", "assets", "screenshots", ".github", "notebooks"}
_SOURCES = (".py", ".toml", ".yaml", ".yml", ".json")
_LOADS = re.compile(rb"^(async\s+)?def load_environment\(", re.MULTILINE)
_V1 = re.compile(rb"^\s*(import verifiers\.v1|from verifiers(\.v1)? import (v1|.*Taskset))", re.MULTILINE)
_TASKSET = re.compile(rb"\bTaskset\b")


class PackageKind(StrEnum):
    OPENENV = "openenv"
    VERIFIERS_V0 = "verifiers_v0"
    """A module with `load_environment()`."""
    VERIFIERS_V1 = "verifiers_v1"
    """A module whose `__all__` has a `Taskset`."""


@dataclass(frozen=True, slots=True)
class ForeignPackage:
    kind: PackageKind
    folder: str
    """Name of its folder; empty if it has none."""
    files: dict[str, str]
    """Text by path; binary files are under `*.base64`."""
    carried: list[str] = field(default_factory=list)
    """Paths of imported binary files."""
    left_out: list[SkippedFile] = field(default_factory=list)


def read_foreign(files: Mapping[str, bytes], folder: str = "", path: str = "") -> ForeignPackage:
    """Find the package in these files; `path` is its folder among them. Raises PackageInvalid, saying what to do."""
    if not files:
        raise PackageInvalid("there is no file in it")
    files = {name: data for name, data in files.items() if not _IGNORED.search(name)}
    root, kind = _find_root(files, path.strip("/"))
    package = ForeignPackage(kind, PurePosixPath(root).name or folder, {})
    texts: dict[str, str] = {}
    binaries: dict[str, bytes] = {}
    prefix = f"{root}/" if root else ""
    for name, data in sorted((name.removeprefix(prefix), files[name]) for name in files if name.startswith(prefix)):
        text = None
        if b"\x00" not in data:
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:
                pass
        why = ""
        if _SECRET.search(name) and not _EXAMPLE.search(name):
            why = "it may hold a secret"
        elif not is_plain_path(name):
            why = "its name has characters that a package's paths may not have"
        elif data.startswith(b"version https://git-lfs.github.com/"):
            why = "only a pointer to Git LFS was uploaded, not the file itself"
        elif text is None:
            binaries[name] = data
        elif len(data) > MAX_FILE_BYTES:
            why = f"larger than {MAX_FILE_BYTES:,} bytes"
        else:
            texts[name] = text
        if why:
            package.left_out.append(SkippedFile(path=name, size=len(data), why=why))
    source = "\n".join(text for name, text in texts.items() if name.endswith(_SOURCES))
    _keep_texts(package, texts, source)
    # Keep small binary files that the code may read: it contains their name or their suffix.
    size = sum(len(text.encode()) for text in package.files.values())
    room = min(MAX_BINARIES_BYTES, (MAX_PACKAGE_BYTES - size) * 3 // 4)
    for name, data in sorted(binaries.items(), key=lambda item: len(item[1])):
        if len(data) > MAX_BINARY_BYTES:
            why = f"binary, and larger than {MAX_BINARY_BYTES:,} bytes"
        elif not _is_named(name, source):
            why = "binary, and not named in the code"
        elif len(data) > room or len(package.files) >= MAX_FILES:
            why = "binary, and there is no room left for it"
        else:
            room -= len(data)
            stored, text = binary_as_text(name, data)
            package.files[stored] = text
            package.carried.append(name)
            continue
        package.left_out.append(SkippedFile(path=name, size=len(data), why=why))
    if not package.files:
        raise PackageInvalid("nothing of it can be imported")
    return package


def _find_root(files: Mapping[str, bytes], path: str) -> tuple[str, PackageKind]:
    """Return the folder that holds the package, and the package's kind."""
    paths = {name: pure for name in files if (pure := PurePosixPath(name)).parent.is_relative_to(path)}
    if not paths:
        raise PackageInvalid(f"there is no folder {path!r} in it")
    manifests = _outermost_folders(paths.values(), MANIFEST_PATH)
    if len(manifests) == 1:
        return manifests[0], PackageKind.OPENENV
    if len(manifests) > 1:
        shown = ", ".join(manifests[:12])
        raise PackageInvalid(f"it holds {len(manifests)} packages: select one by its path, one of {shown}")
    modules: dict[str, PackageKind] = {}
    for name, pure in paths.items():
        data, folder = files[name] if name.endswith(".py") else b"", "" if str(pure.parent) == "." else str(pure.parent)
        if _V1.search(data) and _TASKSET.search(data):
            modules[folder] = PackageKind.VERIFIERS_V1
        elif _LOADS.search(data) and b"verifiers" in data:
            modules[folder] = PackageKind.VERIFIERS_V0
    projects = _outermost_folders(paths.values(), "pyproject.toml")
    owners = {
        project: kind
        for project in projects
        for at, kind in modules.items()
        if PurePosixPath(at).is_relative_to(project)
    }
    if len(owners) == 1:
        return next(iter(owners.items()))
    if owners:
        raise PackageInvalid(f"it holds {len(owners)} packages: select one by its path, one of {', '.join(owners)}")
    if modules:
        raise PackageInvalid(
            "there is a verifiers environment in it, but no pyproject.toml that lists its requirements"
        )
    raise PackageInvalid(f"there is neither an `{MANIFEST_PATH}` nor a verifiers environment in it")


def _outermost_folders(paths: Iterable[PurePosixPath], name: str) -> list[str]:
    """Return the outermost folders with a file of this name, because a package may contain another as an example."""
    kept: list[str] = []
    folders = {"" if str(path.parent) == "." else str(path.parent) for path in paths if path.name == name}
    for folder in sorted(folders, key=lambda known: (known.count("/"), known)):
        if not any(PurePosixPath(folder).is_relative_to(other) for other in kept):
            kept.append(folder)
    return kept


def _is_named(path: str, source: str) -> bool:
    """Return whether the code contains the file's name. For data, its suffix is enough; for media it is not."""
    pure = PurePosixPath(path)
    if pure.name in source:
        return True
    is_data = pure.suffix not in _MEDIA and len(pure.suffix) > 1
    return is_data and re.search(rf"{re.escape(pure.suffix)}\b", source) is not None


def _keep_texts(package: ForeignPackage, texts: dict[str, str], source: str) -> None:
    """Keep all texts. If the package is too large, drop media and then files that the server does not need."""
    sizes = {path: len(text.encode()) for path, text in texts.items()}
    is_too_large = sum(sizes.values()) > MAX_PACKAGE_BYTES
    surplus: list[str] = []
    if len(texts) > MAX_FILES or is_too_large:
        surplus = [path for path in texts if PurePosixPath(path).suffix in _MEDIA and not _is_named(path, source)]
    if len(texts) - len(surplus) > MAX_FILES or is_too_large:
        surplus += [path for path in texts if set(PurePosixPath(path).parts[:-1]) & _OPTIONAL_FOLDERS]
    for path in dict.fromkeys(surplus):
        del texts[path]
        why = "the package is too large to include it"
        package.left_out.append(SkippedFile(path=path, size=sizes.pop(path), why=why))
    package.files.update(texts)
    size = sum(sizes.values())
    if len(texts) > MAX_FILES or size > MAX_PACKAGE_BYTES:
        raise PackageInvalid(
            f"{len(texts)} files of {size:,} bytes; a package has at most {MAX_FILES} of {MAX_PACKAGE_BYTES:,}"
        )
