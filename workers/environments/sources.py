"""Distributions without a wheel: fetched as they are, built inside the jail, offered to uv as wheels.

Nothing of them runs outside the sandbox. If no jail can be made, none are built.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from backend.domain.errors import SandboxError
from workers.commands import Bounds, CommandStopped, Finished, run_command
from workers.environments.uv import Wheel, append
from workers.environments.wheels import Installer
from workers.environments.zygotes import jail_command

ROUNDS = 8
"""Maximum number of consecutive resolutions that find another distribution without a wheel."""
MAX_WHEEL_BYTES = 128 << 20
_BUILD_BOUNDS = Bounds(180, output_bytes=64 << 20, memory_bytes=3 << 29)
_READ_BOUNDS = Bounds(60, output_bytes=4 << 20, limits={"AS": 512 << 20, "CPU": 20, "FSIZE": 16 << 20, "NOFILE": 32})
_IS_BUILT = " has no wheel: building its source in the sandbox"


@dataclass(frozen=True, slots=True)
class SourceDistribution:
    name: str
    version: str
    path: str

    @property
    def failure(self) -> str:
        return f"{self.name} {self.version} has no wheel, and its source could not be built in the sandbox:"

    def is_wheel(self, filename: str) -> bool:
        """Whether a file name is that of a wheel of this very distribution and version."""
        try:
            name, version, _, _ = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return False
        return name == canonicalize_name(self.name) and str(version) == self.version

    async def build_requirements(self) -> tuple[str, ...]:
        """Build requirements in its pyproject.toml: wheels of the index only, as everywhere. Raises SandboxError.

        A program with limits reads the archive: a small one may unpack to gigabytes.
        """
        filename, program = Path(self.path).name, str(Path(__file__).with_name("read_source.py"))
        command = (sys.executable, "-I", "-S", "-B", program, self.path)
        try:
            answer = json.loads((await run_command(command, _READ_BOUNDS, environment={})).output)
        except CommandStopped as error:
            raise SandboxError(f"{filename} cannot be read: {error}") from error
        except ValueError:
            raise SandboxError(f"{filename} cannot be read within the time and memory allowed") from None
        if "error" in answer:
            raise SandboxError(f"the source distribution {filename} is refused: {answer['error']}")
        if answer["requires"] is None:  # a `setup.py` without `pyproject.toml`, which may need `pkg_resources`
            return ("setuptools<81", "wheel")
        for line in answer["requires"]:
            is_from_index = False
            with suppress(InvalidRequirement):
                is_from_index = not Requirement(line).url
            if not is_from_index:
                raise SandboxError(
                    f"{self.name} {self.version}: its build requires {line!r}, which is not a distribution of the index"
                )
        return tuple(answer["requires"])


@dataclass(slots=True)
class SourceBuilder:
    installer: Installer
    new_root: Path

    async def build_missing(self, missing: Sequence[Requirement], folder: Path, log: Path) -> bool:
        """Build missing wheels in `folder`. False if nothing could be built."""
        if not missing:
            return False
        folder.mkdir(parents=True, exist_ok=True)
        program = str(Path(__file__).with_name("fetch_source.py"))
        command = (str(self.installer.runtime), "-I", "-B", program, str(folder), *map(str, missing))
        try:
            done = await run_command(command, Bounds(300, limits={"AS": 4 << 30, "FSIZE": 256 << 20}))
        except CommandStopped as error:
            done = Finished(1, "", str(error))
        if done.status:
            lines = done.errors.strip().splitlines()[-3:]
            append(log, "\n".join(["", "# looking for source distributions failed:", *lines, ""]))
            return False
        sources = [SourceDistribution(**each) for each in json.loads(done.output.strip().splitlines()[-1])]
        wheels = [path.name for path in folder.glob("*.whl")]
        fresh = [source for source in sources if not any(map(source.is_wheel, wheels))]
        for source in fresh:
            append(log, f"\n# {source.name} {source.version}{_IS_BUILT}\n")
            environment = folder / f"{source.name}.environment"
            requirements = await self.installer.index.resolve(await source.build_requirements(), log)
            await self.installer.install(environment, requirements, log, is_standalone=True)
            unfinished = folder / "unfinished"
            with open(source.path, "rb") as archive, unfinished.open("wb") as wheel:
                await self._build_in_jail(source, environment, (archive.fileno(), wheel.fileno()), log)
            path = await asyncio.to_thread(_accept_wheel, unfinished, source)
            # unpack it, which checks it, before uv reads it
            built = Wheel(source.name, source.version, path.name, str(path))
            await self.installer.provide([built], folder / "checked", log)
        return bool(fresh)

    async def _build_in_jail(
        self, source: SourceDistribution, environment: Path, files: tuple[int, int], log: Path
    ) -> None:
        self.new_root.mkdir(parents=True, exist_ok=True)
        [site_packages] = environment.absolute().glob("lib/python*/site-packages")
        ring = {"new_root": str(self.new_root), "site_packages": [str(site_packages)], "uid": 60_998, "compiler": True}
        command = jail_command(self.installer.runtime.absolute(), ring, "build_wheel", *map(str, files))
        variables = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
        try:
            done = await run_command(command, _BUILD_BOUNDS, environment=variables, pass_fds=files)
        except CommandStopped as error:
            raise SandboxError(f"{source.failure} {error}") from error
        output = (done.output + done.errors)[-(1 << 15) :]
        with log.open("a") as file:
            file.write(output)
        if done.status:
            raise SandboxError("\n".join([source.failure, *output.strip().splitlines()[-12:]]))


def _accept_wheel(unfinished: Path, source: SourceDistribution) -> Path:
    """Path of the wheel from the jail if it is the requested one: foreign code chose its name."""
    with unfinished.open("rb") as file:
        name = file.readline(300).decode(errors="replace").rstrip("\n")
        if "/" in name or not source.is_wheel(name):
            raise SandboxError(f"{source.failure} it made {name[:100]!r} instead")
        content = file.read(MAX_WHEEL_BYTES + 1)
    if len(content) > MAX_WHEEL_BYTES:
        raise SandboxError(f"{source.failure} its wheel is larger than {MAX_WHEEL_BYTES >> 20} MB")
    path = unfinished.with_name(name)
    path.write_bytes(content)
    return path


def built_from_source(log: str) -> list[str]:
    """Names and versions, from the log of a virtual environment."""
    return list(dict.fromkeys(re.findall(rf"^# (\S+ \S+){_IS_BUILT}$", log, re.MULTILINE)))
