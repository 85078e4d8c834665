"""The packages that the env host was given, as zips in its folder under their content hash."""

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import ValidationError

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid, content_hash, read_toml, unpack
from backend.domain.yaml_text import YamlInvalid, read_yaml

_MAX_VARIABLES_LENGTH = 8_000
_OPENENV_FROM_SOURCE = re.compile(r"^(openenv(?:-core)?)\s*(\[[^\]]*\])?\s*@\s*\S+$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoredPackage:
    hash: str
    path: Path
    """The zip."""
    name: str
    app: str
    variables: dict[str, str]
    resources: ResourcesSpec
    requirements: tuple[str, ...]
    """Its declared requirements, including `openenv`."""
    columns_from: str | None = None
    """Dotted path of the reward columns in its observations. Default: `metadata.rewards`."""


class PackageStore:
    """Stored packages, up to a size: every trial of a draft leaves one, and clients send it again when they need it."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 30) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._described: dict[str, StoredPackage] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("*.new"):
            unfinished.unlink()

    def put(self, hash_: str, data: bytes) -> StoredPackage:
        """Raises PackageInvalid if the files do not match the hash."""
        files = unpack(data)
        if content_hash(files) != hash_:
            raise PackageInvalid("the files do not have this hash")
        package = describe(hash_, self._path(hash_), files)
        unfinished = package.path.with_suffix(".new")
        unfinished.write_bytes(data)
        unfinished.replace(package.path)
        self._described[hash_] = package
        return package

    def find(self, hash_: str) -> StoredPackage | None:
        path = self._path(hash_)
        try:
            os.utime(path)  # mark it as used
        except FileNotFoundError:
            self._described.pop(hash_, None)
            return None
        if hash_ not in self._described:
            self._described[hash_] = describe(hash_, path, unpack(path.read_bytes()))
        return self._described[hash_]

    def evict(self, in_use: Collection[str]) -> None:
        sizes = {path: path.stat().st_size for path in self._folder.glob("*.zip")}
        for path in evictable(sizes, self._max_bytes, in_use):
            self._described.pop(path.stem, None)
            path.unlink(missing_ok=True)

    def _path(self, hash_: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", hash_):
            raise PackageInvalid("a package's hash is 64 hexadecimal digits")
        return self._folder / f"{hash_}.zip"


def evictable(sizes: Mapping[Path, int], max_bytes: int, in_use: Collection[str] = ()) -> Iterator[Path]:
    """The least recently used files or folders until the rest fits; never one in use or used in the last 15 minutes.

    One that was requested so recently may be about to be used.
    """
    used_at, total = {path: path.stat().st_mtime for path in sizes}, sum(sizes.values())
    for path in sorted(sizes, key=lambda path: used_at[path]):
        if total > max_bytes and path.stem not in in_use and used_at[path] < time.time() - 900:
            total -= sizes[path]
            yield path


def describe(hash_: str, path: Path, files: Mapping[str, str]) -> StoredPackage:
    """Read the manifest of a package as far as serving it needs. Raises PackageInvalid."""
    manifest = _read_manifest(files[MANIFEST_PATH])
    variables = {str(key): str(v) for key, v in _mapping(manifest.get("variables")).items() if v is not None}
    if sum(len(key) + len(value) for key, value in variables.items()) > _MAX_VARIABLES_LENGTH:
        raise PackageInvalid(f"{MANIFEST_PATH}: variables: more than {_MAX_VARIABLES_LENGTH:,} characters")
    name = str(manifest.get("name", ""))
    columns_from = _mapping(manifest.get("proctor")).get("columns_from")
    return StoredPackage(
        hash=hash_,
        path=path,
        name=name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name) else "package",
        app=str(manifest.get("app") or "server.app:app")[:200],
        variables=variables,
        resources=resources_of(files[MANIFEST_PATH]),
        requirements=requirements_of(files),
        columns_from=str(columns_from) if columns_from else None,
    )


def resources_of(manifest: str) -> ResourcesSpec:
    """The requested resources of a manifest, even if other parts of it are invalid. Raises PackageInvalid."""
    requested = _mapping(_mapping(_read_manifest(manifest).get("proctor")).get("resources"))
    try:
        return ResourcesSpec.model_validate(requested)
    except ValidationError as error:
        raise PackageInvalid(f"{MANIFEST_PATH}: proctor.resources: {error}") from error


def _read_manifest(text: str) -> dict[str, object]:
    try:
        return _mapping(read_yaml(text))
    except YamlInvalid as error:
        raise PackageInvalid(f"{MANIFEST_PATH}: {error}") from error


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def requirements_of(files: Mapping[str, str]) -> tuple[str, ...]:
    """Requirements of `pyproject.toml`, or of `requirements.txt` if that declares none. Raises PackageInvalid."""
    declared = _mapping(read_toml(files.get("pyproject.toml", "")).get("project")).get("dependencies")
    lines, source = [], "pyproject.toml"
    if isinstance(declared, list):
        lines = [str(line).strip() for line in declared]
    elif source := next((path for path in ("requirements.txt", "server/requirements.txt") if path in files), ""):
        lines = [line for line in (each.split(" #")[0].strip() for each in files[source].splitlines()) if line]
        lines = [line for line in lines if line[0] not in "#-"]
    requirements = []
    for line in lines:
        if openenv := _OPENENV_FROM_SOURCE.match(line):  # a repository of the runtime that we already have
            requirements.append(f"{openenv[1]}{openenv[2] or ''}")
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise PackageInvalid(f"{source}: {line!r} is not a requirement") from error
        if requirement.url:
            raise PackageInvalid(f"{source}: {line!r} is fetched from a URL: only packages of the index are installed")
        requirements.append(line)
    return tuple(sorted(requirements))
