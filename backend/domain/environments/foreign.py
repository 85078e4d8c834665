"""A package that others wrote, as bytes by path: where it begins, what kind it is, what of it can be carried.

Nothing is executed. What cannot be carried is named with a reason, never dropped in silence.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from backend.domain.environments.packages import (
    MANIFEST_PATH,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_PACKAGE_BYTES,
    PackageInvalid,
    binary_as_text,
    check_path,
)

MAX_BINARY_BYTES = 400_000
MAX_BINARIES_BYTES = 2_000_000
"""Maximum size of one binary file, and of all of them."""
MAX_NAMES = 4_000
"""Maximum number of files in an upload before filtering."""

_IGNORED_FOLDERS = {".git", "__pycache__", ".venv", "venv", "node_modules", "outputs", ".pytest_cache", ".ruff_cache"}
_IGNORED_NAMES = {"uv.lock", "poetry.lock", ".DS_Store", ".gitignore", ".gitattributes", ".dockerignore"}
_SECRET = re.compile(r"(^|/)(\.env(\..*)?|id_[a-z0-9]+|.*\.(pem|key|p12|pfx)|\.netrc|\.pypirc|credentials)$")
_EXAMPLE = re.compile(r"\.env\.(example|sample|template)$")
_PRETTY = {".png", ".jpg", ".jpeg", ".gif", ".svg", ".mp4", ".mov", ".webp", ".ico", ".pdf", ".ipynb"}
"""Images and documents, skipped unless the code names them."""
_EXPENDABLE = ("tests", "test", "docs", "examples", "assets", "screenshots", ".github", "notebooks")


class PackageKind(StrEnum):
    OPENENV = "openenv"
    VERIFIERS_V0 = "verifiers_v0"
    """A module with `load_environment()`."""
    VERIFIERS_V1 = "verifiers_v1"
    """A module whose `__all__` has a `Taskset`."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not carried, and why."""

    path: str
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class ForeignPackage:
    """A package as it was found."""

    kind: PackageKind
    folder: str
    """The name of the folder that it lay in; empty when it had none."""
    files: dict[str, str]
    """Text by path; files that are no text under `*.base64`."""
    carried: list[str] = field(default_factory=list)
    """Files that are no text and came along."""
    left_out: list[LeftOut] = field(default_factory=list)


def read_foreign(files: Mapping[str, bytes], folder: str = "", path: str = "") -> ForeignPackage:
    """Find the package in these files. `path`: where it lies among them. Raises PackageInvalid, saying what to do."""
    if not files:
        raise PackageInvalid("there is no file in it")
    root, inside = _root(files, path.strip("/"))
    name = PurePosixPath(root).name or folder
    chosen = {key.removeprefix(f"{root}/") if root else key: data for key, data in files.items() if _is_in(key, root)}
    package = _carry(inside, name, chosen)
    if not package.files:
        raise PackageInvalid("nothing of it can be carried")
    return package


def _is_in(path: str, root: str) -> bool:
    return not root or path.startswith(f"{root}/")


# where it begins


def _root(files: Mapping[str, bytes], path: str) -> tuple[str, PackageKind]:
    """The folder that holds the package, and the package's kind."""
    looked_at = [name for name in files if _is_in(name, path) and not _is_ignored(PurePosixPath(name))]
    if not looked_at:
        raise PackageInvalid(f"there is no folder {path!r} in it")
    roots = _outermost(_parent(name) for name in looked_at if PurePosixPath(name).name == MANIFEST_PATH)
    if len(roots) == 1:
        return roots[0], PackageKind.OPENENV
    if len(roots) > 1:
        raise PackageInvalid(f"it holds {len(roots)} packages: say which by its path, one of {', '.join(roots[:12])}")
    found = {_parent(name): kind for name in looked_at if (kind := _verifiers_kind(name, files[name]))}
    projects = _outermost(_parent(name) for name in looked_at if PurePosixPath(name).name == "pyproject.toml")
    owners = {project: kind for project in projects for at, kind in found.items() if _is_in(f"{at}/x", project)}
    if len(owners) == 1:
        return next(iter(owners.items()))
    if owners:
        raise PackageInvalid(f"it holds {len(owners)} packages: say which by its path, one of {', '.join(owners)}")
    if found:
        raise PackageInvalid("there is a verifiers environment in it, but no pyproject.toml that says what it needs")
    raise PackageInvalid(f"there is neither an `{MANIFEST_PATH}` nor a verifiers environment in it")


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent


def _outermost(folders: Iterable[str]) -> list[str]:
    """Keep the outermost folders, because a package may contain another one as an example."""
    kept: list[str] = []
    for folder in sorted(set(folders), key=lambda known: (known.count("/"), known)):
        if not any(_is_in(f"{folder}/", other) for other in kept):
            kept.append(folder)
    return kept


_LOADS = re.compile(rb"^(async\s+)?def load_environment\(", re.MULTILINE)
_V1 = re.compile(rb"^\s*(import verifiers\.v1|from verifiers(\.v1)? import (v1|.*Taskset))", re.MULTILINE)
_TASKSET = re.compile(rb"\bTaskset\b")


def _verifiers_kind(path: str, data: bytes) -> PackageKind | None:
    if not path.endswith(".py"):
        return None
    if _V1.search(data) and _TASKSET.search(data):
        return PackageKind.VERIFIERS_V1
    is_v0 = _LOADS.search(data) and b"verifiers" in data
    return PackageKind.VERIFIERS_V0 if is_v0 else None


# what is carried


def _carry(kind: PackageKind, folder: str, files: Mapping[str, bytes]) -> ForeignPackage:
    package = ForeignPackage(kind, folder, {})
    texts: dict[str, str] = {}
    binaries: dict[str, bytes] = {}
    for path, data in sorted(files.items()):
        if _is_ignored(PurePosixPath(path)):
            continue
        if why := _unfit(path, data):
            package.left_out.append(LeftOut(path, len(data), why))
        elif (text := _as_text(data)) is None:
            binaries[path] = data
        elif len(data) > MAX_FILE_BYTES:
            package.left_out.append(LeftOut(path, len(data), f"larger than {MAX_FILE_BYTES:,} bytes"))
        else:
            texts[path] = text
    source = "\n".join(
        text for path, text in texts.items() if path.endswith((".py", ".toml", ".yaml", ".yml", ".json"))
    )
    _keep_texts(package, texts, source)
    _keep_binaries(package, binaries, source)
    return package


def _is_ignored(path: PurePosixPath) -> bool:
    """Made by tools, not by the author: not even worth a line."""
    return (
        bool(_IGNORED_FOLDERS & set(path.parts))
        or path.name in _IGNORED_NAMES
        or path.suffix == ".pyc"
        or any(part.endswith(".egg-info") for part in path.parts)
    )


def _unfit(path: str, data: bytes) -> str:
    """Why a file cannot be carried whatever it holds."""
    if _SECRET.search(path) and not _EXAMPLE.search(path):
        return "it may hold a secret"
    try:
        check_path(path)
    except PackageInvalid:
        return "its name has characters that a package's paths may not have"
    if data.startswith(b"version https://git-lfs.github.com/"):
        return "only a pointer to Git LFS came along, not the file itself"
    return ""


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text


def _keep_texts(package: ForeignPackage, texts: dict[str, str], source: str) -> None:
    """All of them, unless they are too many: then what the server does not need goes first."""
    pictures = [path for path in texts if PurePosixPath(path).suffix in _PRETTY and not _is_named(path, source)]
    surplus = pictures if len(texts) > MAX_FILES or _size(texts) > MAX_PACKAGE_BYTES else []
    if len(texts) - len(surplus) > MAX_FILES or _size(texts) > MAX_PACKAGE_BYTES:
        surplus = [*surplus, *(path for path in texts if set(PurePosixPath(path).parts[:-1]) & set(_EXPENDABLE))]
    for path in dict.fromkeys(surplus):
        package.left_out.append(LeftOut(path, len(texts.pop(path).encode()), "the package is too large to carry it"))
    package.files.update(texts)
    if len(texts) > MAX_FILES or _size(texts) > MAX_PACKAGE_BYTES:
        raise PackageInvalid(
            f"{len(texts)} files of {_size(texts):,} bytes; a package has at most {MAX_FILES} of {MAX_PACKAGE_BYTES:,}"
        )


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(text.encode()) for text in texts.values())


def _keep_binaries(package: ForeignPackage, binaries: dict[str, bytes], source: str) -> None:
    """The small ones that the code may read: it names them, their folder or their kind of file."""
    room = min(MAX_BINARIES_BYTES, (MAX_PACKAGE_BYTES - _size(package.files)) * 3 // 4)
    for path, data in sorted(binaries.items(), key=lambda item: len(item[1])):
        if len(data) > MAX_BINARY_BYTES:
            why = f"no text, and larger than {MAX_BINARY_BYTES:,} bytes"
        elif not _is_named(path, source):
            why = "no text, and nothing in the code names it"
        elif len(data) > room or len(package.files) >= MAX_FILES:
            why = "no text, and there is no room left for it"
        else:
            room -= len(data)
            stored, text = binary_as_text(path, data)
            package.files[stored] = text
            package.carried.append(path)
            continue
        package.left_out.append(LeftOut(path, len(data), why))


def _is_named(path: str, source: str) -> bool:
    """Does the code say its name? A picture has to be named itself, data may be named by its ending."""
    pure = PurePosixPath(path)
    if pure.name in source:
        return True
    is_data = pure.suffix not in _PRETTY and len(pure.suffix) > 1
    return is_data and re.search(rf"{re.escape(pure.suffix)}\b", source) is not None
