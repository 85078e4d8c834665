"""Resolve requirements to wheels: uv looks where pip is configured to look, and builds and installs nothing."""

import asyncio
import os
import re
import shutil
import ssl
import sys
import tempfile
import tomllib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import url2pathname

import aiohttp
from packaging import tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from uv import find_uv_bin

from backend.domain.errors import SandboxError
from backend.settings import PROJECT_ROOT
from workers.commands import Bounds, CommandStopped, run_command
from workers.environments.pip_options import ask_pip, uv_options, uv_variables
from workers.environments.zygotes import site_packages_of

MAX_WRITTEN_BYTES = 2 << 30
"""Limit of uv's cache: a few MB of metadata, or whole unpacked wheels if an index lacks metadata or hashes."""
_LIMITS = {"AS": 16 << 30, "CPU": 300, "FSIZE": MAX_WRITTEN_BYTES}
_BOUNDS = Bounds(300, output_bytes=16 << 20, written_bytes=MAX_WRITTEN_BYTES, limits=_LIMITS)
_NEEDED = r"(?:you require|depends on) ({name}(?:\[[^\]]*\])?(?:(?:===?|~=|!=|<=?|>=?)[^\s;]+)?)(?=[\s]|[,.](?:\s|$)|$)"
_ADDRESS = re.compile(r"\b(?:https?|file|ftp)://[^\s'\"`<>)\],]+")
_ARCHIVE = re.compile(r"/([\w.+!-]+\.(?:whl|tar\.gz|tgz|zip|tar\.bz2))(?:[#?.].*)?$")


# the build log, without credentials, addresses and paths of this machine


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(without_addresses(text))


def without_addresses(text: str) -> str:
    """Addresses may hold credentials, and those of a package index may be internal; names of archives are kept."""
    return _ADDRESS.sub(
        lambda match: f"<address>/{archive[1]}" if (archive := _ARCHIVE.search(match[0])) else "<address>", text
    )


def path_filter(folders: Mapping[Path, str]) -> Callable[[str], str]:
    """Return a function that replaces folders of this machine in texts for users."""
    names = {Path.home(): "~", Path(sys.prefix): "<python>", Path(sys.base_prefix): "<python>"}
    names |= {PROJECT_ROOT: "<proctor>", **folders}
    known = {str(path): name for folder, name in names.items() for path in (folder.absolute(), folder.resolve())}
    known.pop(tempfile.gettempdir(), None)  # the same in every sandbox
    longest_first = sorted([path for path in known if len(path) > 2], key=len, reverse=True)
    paths = re.compile(rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-])")
    return lambda text: paths.sub(lambda match: known[match[0]], without_addresses(text))


# package indexes


@dataclass(frozen=True, slots=True)
class Wheel:
    name: str
    version: str
    filename: str
    address: str
    """A URL, or a path of this machine."""
    sha256: str = ""
    """Empty if the index has none."""
    size: int | None = None


@dataclass
class PackageIndex:
    """pip's configured indexes, for uv and for our own downloads. Asks pip once."""

    python: Path
    """The shared runtime's, which is trusted."""
    cache: Path
    """uv's."""
    _options: dict[str, str] | None = None

    def session(self) -> aiohttp.ClientSession:
        options = self._options or {}
        seconds = float(options.get("timeout") or options.get("default-timeout") or 60)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=options.get("cert")), limit=32)
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=True, headers={"Accept-Encoding": "identity"}
        )

    def request_options(self, address: str) -> dict[str, Any]:
        """Keyword arguments of a request. The login of an index is sent to its own origin only."""
        known, parts = self._options or {}, urlsplit(address)
        options: dict[str, object] = {"proxy": known.get("proxy") or None}
        names = ("index-url", "extra-index-url", "find-links")
        for index in [urlsplit(part) for name in names for part in known.get(name, "").split()]:
            if parts.username is None and index.username is not None and _origin(index) == _origin(parts):
                login = f"{unquote(index.username)}:{unquote(index.password or '')}"
                options["headers"] = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"}
        if {parts.hostname, _origin(parts)[1]} & set(known.get("trusted-host", "").split()):
            options["ssl"] = False
        return options

    async def resolve(
        self, requirements: Sequence[str], log: Path, *, constraints: Sequence[str] = (), links: Path | None = None
    ) -> list[Wheel]:
        """The wheels that meet the requirements. `links`: a folder with additional wheels.

        Raises NotResolved, with uv's output in the log, and SandboxError if uv cannot work.
        """
        if self._options is None:
            self._options = await asyncio.to_thread(ask_pip, self.python)
        with tempfile.TemporaryDirectory(prefix="proctor-resolve-") as folder:
            file = Path(folder, "constraints.txt")
            file.write_text("\n".join(constraints))
            arguments = [
                *(find_uv_bin(), "pip", "compile", "--quiet", "--color", "never", "--no-progress"),
                *("--python", str(self.python), "--only-binary", ":all:", "--format", "pylock.toml", "--no-header"),
                *uv_options(self._options),
                *(["--constraints", str(file)] if constraints else []),
                *(["--find-links", str(links)] if links and links.is_dir() else []),
                "-",
            ]
            variables = {"UV_CACHE_DIR": str(self.cache), **os.environ, **uv_variables(self._options)}  # noqa: TID251
            given = "\n".join(requirements) + "\n"
            try:
                done = await run_command(arguments, _BOUNDS, given=given, environment=variables, folder=Path(folder))
            except CommandStopped as error:
                shutil.rmtree(self.cache, ignore_errors=True)  # whatever it unpacked there is useless
                raise SandboxError(f"the package's requirements could not be resolved: {error}") from error
            if done.status:
                output = without_addresses((done.errors or done.output).replace(folder, ""))
                append(log, f"\n# uv:\n{output}\n")
                raise NotResolved(output)
            return [self._best_wheel(each, Path(folder)) for each in tomllib.loads(done.output).get("packages", [])]

    def _best_wheel(self, package: dict[str, Any], folder: Path) -> Wheel:
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
        if address.startswith("file:"):
            address = url2pathname(urlsplit(address).path)
        elif "://" not in address:
            address = str(folder / address)
        sha256 = str(file.get("hashes", {}).get("sha256", ""))
        return Wheel(str(package["name"]), str(package["version"]), filename, address, sha256, file.get("size"))

    @cached_property
    def _ranks(self) -> dict[tags.Tag, int]:
        """Platform tags that the shared runtime's interpreter supports, best first."""
        major, minor = map(int, site_packages_of(self.python).parent.name.removeprefix("python").split("."))
        platforms, interpreter = list(tags.platform_tags()), f"cp{major}{minor}"
        supported = list(tags.cpython_tags((major, minor), platforms=platforms))
        supported += tags.compatible_tags((major, minor), interpreter, platforms)
        return {tag: rank for rank, tag in reversed(list(enumerate(supported)))}


def _origin(parts: SplitResult) -> tuple[str, str]:
    return parts.scheme, parts.netloc.rpartition("@")[2]


class NotResolved(SandboxError):
    """No set of wheels meets the requirements."""

    def __init__(self, output: str) -> None:
        lines = [line for line in output.strip().splitlines() if line.strip()][-15:]
        super().__init__("\n".join(["the package's environment could not be built:", *lines]))
        self.without_wheel = without_wheel(output)
        """Requirements that only a source distribution could meet."""


def without_wheel(output: str) -> list[Requirement]:
    """The requirements that uv could meet only by building a source distribution, as far as its output names them."""
    requirements: dict[str, Requirement] = {}
    text = " ".join(output.split())
    for name in dict.fromkeys(re.findall(r"[Ww]heels are required for `([^`]+)`", output)):
        for line in re.findall(_NEEDED.format(name=re.escape(name)), text) or [name]:
            with suppress(InvalidRequirement):
                requirement = Requirement(line)
                requirements[str(requirement)] = requirement
    return list(requirements.values())
