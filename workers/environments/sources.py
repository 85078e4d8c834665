"""Distributions without a wheel: fetched as they are, built inside the jail, offered to uv as wheels.

Nothing of them runs outside the sandbox. Where no jail can be made, there is none of this.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from backend.domain.errors import SandboxError
from workers.commands import Bounds, CommandStopped, end_group, run_command
from workers.environments.build_log import append
from workers.environments.installing import Installer
from workers.environments.memory import wait_until_too_big
from workers.environments.wheels import Wheel
from workers.environments.zygotes import command

ROUNDS = 8
"""Distributions without a wheel that one package may need, one after another."""
BUILD_SECONDS = 180.0
MAX_WHEEL_BYTES = 128 << 20
_MAX_BUILD_BYTES = 3 << 29
"""Of memory, all processes of a build together."""
_UID = 60_998
_FETCH, _READ = (Path(__file__).with_name(f"{name}_source.py") for name in ("fetch", "read"))
_FETCH_BOUNDS = Bounds(300, limits={"AS": 4 << 30, "FSIZE": 256 << 20})
_READ_BOUNDS = Bounds(60, output_bytes=4 << 20, limits={"AS": 512 << 20, "CPU": 20, "FSIZE": 16 << 20, "NOFILE": 32})
_IS_BUILT = " has no wheel: building its source in the sandbox"
_LEGACY = ("setuptools<81", "wheel")
"""Build requirements of a `setup.py` without `pyproject.toml`, including `pkg_resources`."""


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    version: str
    path: str


class Sources:
    """Builds wheels for one host."""

    def __init__(self, installer: Installer, new_root: Path) -> None:
        self._installer, self._python, self._new_root = installer, installer.runtime, new_root

    async def supply(self, missing: Sequence[Requirement], folder: Path, log: Path) -> bool:
        """Build missing wheels in `folder`. False if nothing could be built."""
        if not missing:
            return False
        fetched = await self._fetch([str(requirement) for requirement in missing], folder, log)
        fresh = [source for source in fetched if not _has_wheel(folder, source)]
        for source in fresh:
            await self._build(source, folder, log)
        return bool(fresh)

    async def _fetch(self, requirements: Sequence[str], folder: Path, log: Path) -> list[Source]:
        folder.mkdir(parents=True, exist_ok=True)
        command = (str(self._python), "-I", "-B", str(_FETCH), str(folder), *requirements)
        try:
            done = await run_command(command, _FETCH_BOUNDS)
            if not done.status:
                return [Source(**entry) for entry in json.loads(done.output.strip().splitlines()[-1])]
            said = done.errors.strip().splitlines()[-3:]
        except CommandStopped as error:
            said = [str(error)]
        append(log, "\n".join(["", "# looking for source distributions failed:", *said, ""]))
        return []

    async def _build(self, source: Source, folder: Path, log: Path) -> None:
        append(log, f"\n# {source.name} {source.version}{_IS_BUILT}\n")
        environment = folder / f"{source.name}.environment"
        wheels = await self._installer.resolve(await _requires(source), log)
        await self._installer.install(environment, wheels, log, stands_alone=True)
        unfinished = folder / "unfinished"
        with open(source.path, "rb") as archive, unfinished.open("wb") as wheel:
            await self._build_in_jail(source, environment, (archive.fileno(), wheel.fileno()), log)
        path = await asyncio.to_thread(_take, unfinished, source)
        await self._installer.check(Wheel(source.name, source.version, path.name, str(path)), folder / "checked", log)

    async def _build_in_jail(self, source: Source, environment: Path, files: tuple[int, int], log: Path) -> None:
        self._new_root.mkdir(parents=True, exist_ok=True)
        [site_packages] = environment.absolute().glob("lib/python*/site-packages")
        ring = {
            "new_root": str(self._new_root),
            "site_packages": [str(site_packages)],
            "uid": _UID,
            "compiler": True,
        }
        start = command(self._python.absolute(), ring, "build_wheel", *map(str, files))
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *start,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=files,
                env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"},
                start_new_session=True,
            )
            watch = asyncio.create_task(wait_until_too_big(process.pid, _MAX_BUILD_BYTES, process.kill))
            try:
                said = await _end_of(process, source)
            finally:
                watch.cancel()
            output.write(said)
        if watch.done() and not watch.cancelled():
            raise SandboxError(f"{_what_failed(source)} it used more than {_MAX_BUILD_BYTES >> 20} MB of memory")
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-12:]
            raise SandboxError("\n".join([_what_failed(source), *last]))


async def _end_of(process: asyncio.subprocess.Process, source: Source) -> bytes:
    """The end of its output, bounded."""
    assert process.stdout is not None
    kept = b""
    try:
        async with asyncio.timeout(BUILD_SECONDS):
            while part := await process.stdout.read(1 << 16):
                kept = (kept + part)[-(1 << 15) :]
            await process.wait()
    except TimeoutError:
        raise SandboxError(f"{_what_failed(source)} it took longer than {BUILD_SECONDS:g} s") from None
    finally:
        await end_group(process)
    return kept


def _what_failed(source: Source) -> str:
    return f"{source.name} {source.version} has no wheel, and its source could not be built in the sandbox:"


def built_from_source(log: str) -> list[str]:
    """Names and versions, by the log of a virtual environment."""
    return list(dict.fromkeys(re.findall(rf"^# (\S+ \S+){_IS_BUILT}$", log, re.MULTILINE)))


def _has_wheel(folder: Path, source: Source) -> bool:
    return any(_fits(path.name, source) for path in folder.glob("*.whl"))


def _fits(filename: str, source: Source) -> bool:
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    return name == canonicalize_name(source.name) and str(version) == source.version


def _take(unfinished: Path, source: Source) -> Path:
    """Path of the wheel from the jail if it is the requested one: foreign code chose its name."""
    with unfinished.open("rb") as file:
        name = file.readline(300).decode(errors="replace").rstrip("\n")
        if "/" in name or not _fits(name, source):
            raise SandboxError(f"{_what_failed(source)} it made {name[:100]!r} instead")
        content = file.read(MAX_WHEEL_BYTES + 1)
    if len(content) > MAX_WHEEL_BYTES:
        raise SandboxError(f"{_what_failed(source)} its wheel is larger than {MAX_WHEEL_BYTES >> 20} MB")
    path = unfinished.with_name(name)
    path.write_bytes(content)
    return path


async def _requires(source: Source) -> tuple[str, ...]:
    """What its build needs, by its pyproject.toml; wheels of the index only, like everything else.

    A program with limits reads the archive: a small one may unpack to gigabytes.
    """
    try:
        done = await run_command(
            (sys.executable, "-I", "-S", "-B", str(_READ), source.path), _READ_BOUNDS, environment={}
        )
        answer = json.loads(done.output)
    except CommandStopped as error:
        raise SandboxError(f"{Path(source.path).name} cannot be read: {error}") from error
    except ValueError:
        raise SandboxError(f"{Path(source.path).name} cannot be read within the time and memory allowed") from None
    if "error" in answer:
        raise SandboxError(f"the source distribution {Path(source.path).name} is refused: {answer['error']}")
    lines = answer["requires"]
    return _LEGACY if lines is None else tuple(_checked(line, source) for line in lines)


def _checked(line: str, source: Source) -> str:
    try:
        if not Requirement(line).url:
            return line
    except InvalidRequirement:
        pass
    raise SandboxError(
        f"{source.name} {source.version}: its build requires {line!r}, which is not a distribution of the index"
    )
