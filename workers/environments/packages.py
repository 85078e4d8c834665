"""The packages that the host was given, as zips in its folder under their content hash."""

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import ValidationError

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid, content_hash, read_toml, unpack
from backend.domain.yaml_text import YamlInvalid, read_yaml

MAX_STORED_BYTES = 1 << 30
_JUST_NOW_SECONDS = 900.0
"""A package is sent before its servers are ordered."""
_HASH = re.compile(r"^[0-9a-f]{64}$")
_MAX_VARIABLES_LENGTH = 8_000
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_REQUIREMENTS_FILES = ("requirements.txt", "server/requirements.txt")
_OPENENV_FROM_SOURCE = re.compile(r"^(openenv(?:-core)?)\s*(\[[^\]]*\])?\s*@\s*\S+$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoredPackage:
    """Facts that the host needs to serve a package."""

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
    """Where its observations have the reward columns, if not in `metadata.rewards`."""


class PackageStore:
    """Bounded: every trial of a draft leaves a package; clients send it again when they need it."""

    def __init__(self, folder: Path, max_bytes: int = MAX_STORED_BYTES) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._read: dict[str, StoredPackage] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("*.new"):
            unfinished.unlink()

    def put(self, hash_: str, data: bytes) -> StoredPackage:
        """Raises PackageInvalid when the files are not what the hash says."""
        files = unpack(data)
        if content_hash(files) != hash_:
            raise PackageInvalid("the files do not have this hash")
        package = _describe(hash_, self._path(hash_), files)
        unfinished = self._path(hash_).with_suffix(".new")
        unfinished.write_bytes(data)
        unfinished.replace(package.path)
        self._read[hash_] = package
        return package

    def find(self, hash_: str) -> StoredPackage | None:
        path = self._path(hash_)
        try:
            os.utime(path)  # it is wanted
        except FileNotFoundError:
            self._read.pop(hash_, None)
            return None
        if hash_ not in self._read:
            self._read[hash_] = _describe(hash_, path, unpack(path.read_bytes()))
        return self._read[hash_]

    def tidy(self, in_use: Collection[str]) -> None:
        """Remove the least recently used until the rest fits; never one in use or used just now."""
        newest = time.time() - _JUST_NOW_SECONDS
        stored = sorted(((path.stat(), path) for path in self._folder.glob("*.zip")), key=lambda pair: pair[0].st_mtime)
        total = sum(status.st_size for status, _ in stored)
        for status, path in stored:
            if total <= self._max_bytes:
                return
            if path.stem not in in_use and status.st_mtime < newest:
                self._read.pop(path.stem, None)
                path.unlink(missing_ok=True)
                total -= status.st_size

    def _path(self, hash_: str) -> Path:
        if not _HASH.match(hash_):
            raise PackageInvalid("a package's hash is 64 hexadecimal digits")
        return self._folder / f"{hash_}.zip"


def resources_of(manifest: str) -> ResourcesSpec:
    """Read a manifest's requests, even if other parts are invalid."""
    return _resources(_mapping(_mapping(_mapping(_parse_yaml(manifest)).get("proctor")).get("resources")))


def _describe(hash_: str, path: Path, files: Mapping[str, str]) -> StoredPackage:
    manifest = _mapping(_parse_yaml(files[MANIFEST_PATH]))
    name = str(manifest.get("name", ""))
    block = _mapping(manifest.get("proctor"))
    resources = _mapping(block.get("resources"))
    variables = _variables(_mapping(manifest.get("variables")))
    return StoredPackage(
        hash=hash_,
        path=path,
        name=name if _NAME.match(name) else "package",
        app=str(manifest.get("app") or "server.app:app")[:200],
        variables=variables,
        resources=_resources(resources),
        requirements=requirements_of(files),
        columns_from=str(block["columns_from"]) if block.get("columns_from") else None,
    )


def _parse_yaml(text: str) -> Any:
    try:
        return read_yaml(text)
    except YamlInvalid as error:
        raise PackageInvalid(f"{MANIFEST_PATH}: {error}") from error


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _variables(written: dict[str, Any]) -> dict[str, str]:
    variables = {str(key): str(value) for key, value in written.items() if value is not None}
    if sum(len(key) + len(value) for key, value in variables.items()) > _MAX_VARIABLES_LENGTH:
        raise PackageInvalid(f"{MANIFEST_PATH}: variables: more than {_MAX_VARIABLES_LENGTH:,} characters")
    return variables


def _resources(written: dict[str, Any]) -> ResourcesSpec:
    try:
        return ResourcesSpec.model_validate(written)
    except ValidationError as error:
        raise PackageInvalid(f"{MANIFEST_PATH}: proctor.resources: {error}") from error


def requirements_of(files: Mapping[str, str]) -> tuple[str, ...]:
    """Of `pyproject.toml`, or of a `requirements.txt` where that says nothing. Raises PackageInvalid."""
    written, source = _project_requirements(files.get("pyproject.toml", "")), "pyproject.toml"
    for path in _REQUIREMENTS_FILES if written is None else ():
        if path in files:
            lines = (line.split(" #")[0].strip() for line in files[path].splitlines())
            written, source = [line for line in lines if line and line[0] not in "#-"], path
            break
    return tuple(sorted(_checked_requirement(line, source) for line in written or []))


def _project_requirements(pyproject: str) -> list[str] | None:
    """None if the file declares no requirements."""
    project = _mapping(read_toml(pyproject).get("project"))
    written = project.get("dependencies")
    return [str(line).strip() for line in written] if isinstance(written, list) else None


def _checked_requirement(line: str, source: str) -> str:
    if found := _OPENENV_FROM_SOURCE.match(line):
        return f"{found[1]}{found[2] or ''}"  # the repository of the runtime that we have
    try:
        requirement = Requirement(line)
    except InvalidRequirement as error:
        raise PackageInvalid(f"{source}: {line!r} is not a requirement") from error
    if requirement.url:
        raise PackageInvalid(f"{source}: {line!r} is fetched from an address: only packages of the index are installed")
    return line
