"""Distributions without a wheel: fetched as they are, built inside the jail, handed to pip as wheels.

Nothing of them runs outside the sandbox. Where no jail can be made, there is none of this.
"""

import asyncio
import json
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from backend.domain.errors import SandboxError
from backend.settings import PROJECT_ROOT
from workers.environments.pip import Pip, append

ROUNDS = 8
"""Distributions without a wheel that one package may need, one after another."""
BUILD_SECONDS = 180.0
MAX_WHEEL_BYTES = 128 << 20
_MAX_PYPROJECT_BYTES = 1 << 20
_UID = 60_998
_FETCH = Path(__file__).with_name("fetch_source.py")
_ENTRY = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from workers.environments.inside.build_wheel import main; "
    "sys.path.pop(0); main(sys.argv[1])"
)
_ASKED = re.compile(
    r"(?:No matching distribution found for|that satisfies the requirement|depends on|user requested) (.+)"
)
_IS_BUILT = " has no wheel: building its source in the sandbox"
_LEGACY = ("setuptools<81", "wheel")
"""What a `setup.py` without `pyproject.toml` expects to find, `pkg_resources` included."""


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    version: str
    path: str


class Sources:
    """Builds wheels for one host."""

    def __init__(self, pip: Pip, new_root: Path) -> None:
        self._pip, self._new_root = pip, new_root

    async def supply(self, said: str, folder: Path, log: Path) -> bool:
        """Make wheels, in `folder`, of what pip did not find. False when there is nothing that could be built."""
        asked = [str(requirement) for requirement in missing_of(said)]
        if not asked:
            return False
        fetched = await self._fetch(asked, folder, log)
        fresh = [source for source in fetched if not _has_wheel(folder, source)]
        for source in fresh:
            await self._build(source, folder, log)
        return bool(fresh)

    async def _fetch(self, asked: list[str], folder: Path, log: Path) -> list[Source]:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / "fetch.log"
        scratch.write_text("")
        try:
            said = await self._pip.run(scratch, "-P", str(_FETCH), str(folder), *asked)
        except SandboxError as error:
            append(log, f"\n# looking for source distributions failed:\n{error}\n")
            return []
        return [Source(**entry) for entry in json.loads(said.strip().splitlines()[-1])]

    async def _build(self, source: Source, folder: Path, log: Path) -> None:
        append(log, f"\n# {source.name} {source.version}{_IS_BUILT}\n")
        environment = folder / f"{source.name}.environment"
        await self._pip.make_environment(environment, log)
        await self._pip.install(environment, log, *_requires(Path(source.path)))
        unfinished = folder / "unfinished"
        with open(source.path, "rb") as archive, unfinished.open("wb") as wheel:
            await self._build_in_jail(source, environment, (archive.fileno(), wheel.fileno()), log)
        _take(unfinished, source)

    async def _build_in_jail(self, source: Source, environment: Path, files: tuple[int, int], log: Path) -> None:
        self._new_root.mkdir(parents=True, exist_ok=True)
        options = {
            "new_root": str(self._new_root),
            "environment": str(environment.absolute()),
            "uid": _UID,
            "archive": files[0],
            "wheel": files[1],
        }
        python = str(environment / "bin" / "python")
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(python, "-s", "-P", "-S", "-B", "-c", _ENTRY, str(PROJECT_ROOT), json.dumps(options)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=files,
                env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"},
                start_new_session=True,
            )
            said = await _end_of(process, source)
            output.write(said)
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-12:]
            raise SandboxError("\n".join([_what_failed(source), *last]))


async def _end_of(process: asyncio.subprocess.Process, source: Source) -> bytes:
    """What it said at the end; however much it says, little is kept."""
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
        if process.returncode is None:
            process.kill()  # its children end with it
            await process.wait()
    return kept


def _what_failed(source: Source) -> str:
    return f"{source.name} {source.version} has no wheel, and its source could not be built in the sandbox:"


def missing_of(said: str) -> list[Requirement]:
    """The requirements that pip names when it gives up."""
    found: dict[str, Requirement] = {}
    for line in _ASKED.findall(said):
        try:
            requirement = Requirement(re.split(r" \((?:from|constraint)", line)[0].strip())
        except InvalidRequirement:
            continue
        if not requirement.url:
            found[str(requirement)] = requirement
    return list(found.values())


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


def _take(unfinished: Path, source: Source) -> None:
    """The wheel from the jail, when it is the one that was asked for: foreign code chose its name."""
    with unfinished.open("rb") as file:
        name = file.readline(300).decode(errors="replace").rstrip("\n")
        if "/" in name or not _fits(name, source):
            raise SandboxError(f"{_what_failed(source)} it made {name[:100]!r} instead")
        content = file.read(MAX_WHEEL_BYTES + 1)
    if len(content) > MAX_WHEEL_BYTES:
        raise SandboxError(f"{_what_failed(source)} its wheel is larger than {MAX_WHEEL_BYTES >> 20} MB")
    unfinished.with_name(name).write_bytes(content)


def _requires(archive: Path) -> tuple[str, ...]:
    """What its build needs, by its pyproject.toml; wheels of the index only, like everything else."""
    try:
        table = tomllib.loads(_pyproject(archive)).get("build-system")
        if not isinstance(table, dict):
            return _LEGACY
        return tuple(_checked(str(line)) for line in table.get("requires", []))
    except (ValueError, OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, InvalidRequirement) as error:
        raise SandboxError(f"{archive.name} cannot be read: {error}") from error


def _checked(line: str) -> str:
    if Requirement(line).url:
        raise InvalidRequirement(f"its build asks for {line!r}, which is not of the index")
    return line


def _pyproject(archive: Path) -> str:
    """Its text, or nothing; read as data."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            return _first(file.namelist(), lambda path: file.open(path))
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar if member.isfile()}
        return _first(members, lambda path: tar.extractfile(members[path]))


def _first(paths: Iterable[str], open_: Any) -> str:
    inside = [path for path in paths if re.fullmatch(r"[^/]+/pyproject\.toml", path)]
    if not inside:
        return ""
    with closing(open_(inside[0])) as file:
        return str(file.read(_MAX_PYPROJECT_BYTES).decode())
