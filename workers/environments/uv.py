"""uv resolves requirements to wheels. It looks where pip is configured to look, and builds and installs nothing."""

import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from packaging import tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from uv import find_uv_bin

from backend.domain.errors import SandboxError
from workers.commands import Bounds, CommandStopped, run_command
from workers.environments.build_log import append, without_addresses
from workers.environments.indexes import IndexAccess
from workers.environments.pip_options import uv_options, uv_variables
from workers.environments.wheels import Wheel

RESOLVE_SECONDS = 300.0
MAX_WRITTEN_BYTES = 2 << 30
"""In its cache: a few MB of pages and metadata; where an index has no metadata or no hashes, whole unpacked wheels."""
_BOUNDS = Bounds(
    RESOLVE_SECONDS,
    output_bytes=16 << 20,
    written_bytes=MAX_WRITTEN_BYTES,
    limits={"AS": 16 << 30, "CPU": 300, "FSIZE": MAX_WRITTEN_BYTES},
)
_LAST_LINES = 15
_HINT = re.compile(r"[Ww]heels are required for `([^`]+)`")
_NEEDED = r"(?:you require|depends on) ({name}(?:\[[^\]]*\])?(?:(?:===?|~=|!=|<=?|>=?)[^\s;]+)?)(?=[\s]|[,.](?:\s|$)|$)"


class NotResolved(SandboxError):
    """No set of wheels meets the requirements."""

    def __init__(self, said: str) -> None:
        lines = [line for line in said.strip().splitlines() if line.strip()][-_LAST_LINES:]
        super().__init__("\n".join(["the package's environment could not be built:", *lines]))
        self.without_wheel = without_wheel(said)
        """Requirements that only a source distribution could meet."""


class Uv:
    def __init__(self, access: IndexAccess, cache: Path) -> None:
        self._access, self._python, self._cache = access, access.python, cache

    async def resolve(
        self, requirements: Sequence[str], log: Path, *, constraints: Sequence[str] = (), links: Path | None = None
    ) -> list[Wheel]:
        """The wheels that requirements come to. `links`: a folder with further wheels.

        Raises NotResolved, with what uv printed in the log, and SandboxError where uv cannot work.
        """
        told = await self._access.options()
        with tempfile.TemporaryDirectory(prefix="proctor-resolve-") as folder:
            file = Path(folder, "constraints.txt")
            file.write_text("\n".join(constraints))
            arguments = [
                *(find_uv_bin(), "pip", "compile", "--quiet", "--color", "never", "--no-progress"),
                *("--python", str(self._python), "--only-binary", ":all:", "--format", "pylock.toml", "--no-header"),
                *uv_options(told),
                *(["--constraints", str(file)] if constraints else []),
                *(["--find-links", str(links)] if links and links.is_dir() else []),
                "-",
            ]
            variables = {"UV_CACHE_DIR": str(self._cache), **os.environ, **uv_variables(told)}  # noqa: TID251
            try:
                done = await run_command(
                    arguments,
                    _BOUNDS,
                    given="\n".join(requirements) + "\n",
                    environment=variables,
                    folder=Path(folder),
                )
            except CommandStopped as error:
                shutil.rmtree(self._cache, ignore_errors=True)  # what it unpacked there is of no use
                raise SandboxError(f"the package's requirements could not be worked out: {error}") from error
            if done.status:
                said = without_addresses((done.errors or done.output).replace(folder, ""))
                append(log, f"\n# uv:\n{said}\n")
                raise NotResolved(said)
            return [self._wheel(package, Path(folder)) for package in tomllib.loads(done.output).get("packages", [])]

    def _wheel(self, package: dict[str, Any], folder: Path) -> Wheel:
        """The best file of a locked package. Raises SandboxError."""
        ranked = []
        for file in package.get("wheels", []):
            address = str(file.get("url") or file.get("path") or "")
            filename = str(file.get("name") or unquote(urlsplit(address).path).rpartition("/")[2])
            try:
                name, _, _, fits = parse_wheel_filename(filename)
            except InvalidWheelFilename:
                continue
            rank = min((self._ranks[tag] for tag in fits if tag in self._ranks), default=None)
            if rank is not None and name == canonicalize_name(package["name"]):
                ranked.append((rank, filename, address, file))
        if not ranked:
            raise SandboxError(f"{package['name']} {package.get('version', '')} has no wheel for this machine")
        _, filename, address, file = min(ranked, key=lambda entry: entry[:3])
        sha256 = str(file.get("hashes", {}).get("sha256", ""))
        return Wheel(
            str(package["name"]), str(package["version"]), filename, _local(address, folder), sha256, file.get("size")
        )

    @cached_property
    def _ranks(self) -> dict[tags.Tag, int]:
        """Platform tags that the shared runtime's interpreter supports, best first."""
        version = python_version(self._python)
        platforms = list(tags.platform_tags())
        interpreter = f"cp{version[0]}{version[1]}"
        known = [
            *tags.cpython_tags(version, platforms=platforms),
            *tags.compatible_tags(version, interpreter, platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(known)))}


def python_version(python: Path) -> tuple[int, int]:
    """Of the virtual environment of an interpreter, by its folders."""
    for folder in python.parent.parent.glob("lib/python*.*"):
        if match := re.fullmatch(r"python(\d+)\.(\d+)", folder.name):
            return int(match[1]), int(match[2])
    raise SandboxError("the environment runtime has no library folder: run `make setup`")


def _local(address: str, folder: Path) -> str:
    """Addresses of files become paths."""
    if address.startswith("file:"):
        return url2pathname(urlsplit(address).path)
    return address if "://" in address else str(folder / address)


def without_wheel(said: str) -> list[Requirement]:
    """The requirements that uv could meet only by building a source distribution, as far as it names them."""
    found: dict[str, Requirement] = {}
    text = " ".join(said.split())
    for name in dict.fromkeys(_HINT.findall(said)):
        exact = re.findall(_NEEDED.format(name=re.escape(name)), text)
        for line in [*exact, *([] if exact else [name])]:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue
            found[str(requirement)] = requirement
    return list(found.values())
