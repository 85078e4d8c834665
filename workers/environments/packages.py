"""The packages that the host was given, as zips in its folder under their content hash."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from backend.domain.manifest import ResourcesSpec
from backend.domain.packages import MANIFEST_PATH, PackageInvalid, content_hash, unpack

_HASH = re.compile(r"^[0-9a-f]{64}$")
_MAX_VARIABLES_LENGTH = 8_000
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
_ABOVE_THE_RUNTIME = r"(0\.1[1-9]|[1-9])[0-9.]*"
_PROVIDED = re.compile(
    rf"^openenv(-core)?\s*(\[[^\]]*\])?\s*(>=?\s*[0-9.]+\s*)?(,\s*<\s*{_ABOVE_THE_RUNTIME}\s*)?$", re.IGNORECASE
)
"""Requirements that the shared runtime (openenv 0.10) meets by itself; a pin is left to pip."""

_IN_THE_RUNTIME = {"fastapi", "uvicorn", "pydantic", "uvicorn[standard]"}
"""What `openenv` itself brings, when it is asked for without a version."""


@dataclass(frozen=True, slots=True)
class StoredPackage:
    """What the host needs to know of a package to serve it."""

    hash: str
    path: Path
    """The zip."""
    name: str
    app: str
    variables: dict[str, str]
    resources: ResourcesSpec
    requirements: tuple[str, ...]
    """What it needs beyond `openenv`; empty: the shared runtime will do."""


class PackageStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, StoredPackage] = {}
        folder.mkdir(parents=True, exist_ok=True)

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
        if hash_ not in self._read and (path := self._path(hash_)).is_file():
            self._read[hash_] = _describe(hash_, path, unpack(path.read_bytes()))
        return self._read.get(hash_)

    def _path(self, hash_: str) -> Path:
        if not _HASH.match(hash_):
            raise PackageInvalid("a package's hash is 64 hexadecimal digits")
        return self._folder / f"{hash_}.zip"


def _describe(hash_: str, path: Path, files: Mapping[str, str]) -> StoredPackage:
    manifest = _mapping(_parse_yaml(files[MANIFEST_PATH]))
    name = str(manifest.get("name", ""))
    resources = _mapping(_mapping(manifest.get("proctor")).get("resources"))
    variables = _variables(_mapping(manifest.get("variables")))
    return StoredPackage(
        hash=hash_,
        path=path,
        name=name if _NAME.match(name) else "package",
        app=str(manifest.get("app") or "server.app:app")[:200],
        variables=variables,
        resources=_resources(resources),
        requirements=_requirements(files.get("pyproject.toml", "")),
    )


def _parse_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise PackageInvalid(f"{MANIFEST_PATH} is not YAML: {error}") from error


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


def _requirements(pyproject: str) -> tuple[str, ...]:
    try:
        project = _mapping(tomllib.loads(pyproject).get("project"))
    except tomllib.TOMLDecodeError as error:
        raise PackageInvalid(f"pyproject.toml: {error}") from error
    written = [str(line).strip() for line in project.get("dependencies") or []]
    for line in written:
        if not re.match(r"^[A-Za-z0-9]", line):
            raise PackageInvalid(f"pyproject.toml: {line!r} is not a requirement")
    needed = [line for line in written if not _PROVIDED.match(line) and line.lower() not in _IN_THE_RUNTIME]
    return tuple(sorted(written)) if needed else ()
