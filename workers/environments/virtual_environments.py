"""The virtual environments that packages run in: the shared runtime, one on top of it, or a standalone one.

A package's own holds what it asks for, built once per set of requirements. Requirements that the shared runtime
has in a fitting version are not installed again. A package that pins a different
version is standalone.
"""

import asyncio
import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from backend.domain.errors import SandboxError
from workers.environments.build_log import LOG_CHARACTERS, PathFilter, append
from workers.environments.bytecode import compile_files
from workers.environments.installing import STANDS_ALONE, Installer
from workers.environments.packages import StoredPackage
from workers.environments.sources import ROUNDS, Sources
from workers.environments.tidying import tidy, touch
from workers.environments.uv import NotResolved
from workers.environments.wheels import Wheel

BUILD_SECONDS = 600.0
MAX_BYTES = 20 << 30
LAYOUT = "2"
"""Part of each environment's name; a different layout is rebuilt."""
_SERVES = "openenv>=0.2"
"""Minimum requirements to serve a standalone package; its own pins are added."""
_WHOLE = {"openenv", "openenv-core", "uvicorn", "pydantic", "fastapi"}
"""The runtime's requirements with all extras that packages request."""
_VERSION_FILE = re.compile(r"^(?P<name>.+)-(?P<version>[^-]+)\.dist-info$")


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be installed for a package."""

    requirements: tuple[str, ...]
    """Empty: the shared runtime will do."""
    stands_alone: bool = False


class VirtualEnvironments:
    """Bounded: a package whose own was removed gets it again when it is wanted."""

    def __init__(self, installer: Installer, sources: Sources | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Without `sources`, what has no wheel cannot be installed."""
        self._max_bytes = max_bytes
        self._installer, self._runtime, self._folder = installer, installer.runtime, installer.folder
        self._sources = sources
        self._paths = PathFilter(
            {self._folder: "<environments>", self._folder.parent: "<data>", self._runtime.parent.parent: "<runtime>"}
        )
        self._building: dict[str, asyncio.Lock] = {}
        self._compiling: set[str] = set()
        self._provided: dict[str, Version] | None = None

    @property
    def runtime(self) -> Path:
        """The shared runtime's interpreter, the only one that runs anything."""
        return self._runtime

    def plan(self, package: StoredPackage) -> Plan:
        missing, stands_alone = [], False
        for line in package.requirements:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate():
                continue
            name = canonicalize_name(requirement.name)
            has = self._has("openenv" if name == "openenv-core" else name)
            if has is None or (requirement.extras and name not in _WHOLE):
                missing.append(line)
            elif not requirement.specifier.contains(has, prereleases=True):
                stands_alone = True
        if stands_alone:
            return Plan(self._alone(package), stands_alone=True)
        return Plan(tuple(missing))

    @staticmethod
    def _alone(package: StoredPackage) -> tuple[str, ...]:
        is_served = any(
            canonicalize_name(Requirement(line).name).startswith("openenv") for line in package.requirements
        )
        return package.requirements if is_served else (*package.requirements, _SERVES)

    def _has(self, name: str) -> Version | None:
        """The version of a distribution that the shared runtime has."""
        if self._provided is None:
            self._provided = _installed(self._runtime)
        return self._provided.get(str(name))

    def is_built(self, package: StoredPackage) -> bool:
        return not self.plan(package).requirements or self._home(package).exists()

    def key_of(self, package: StoredPackage) -> str:
        """Packages of the same key share a warm interpreter; empty: the shared runtime's."""
        plan = self.plan(package)
        if not plan.requirements:
            return ""
        asked = "\n".join([LAYOUT, str(self._runtime), *plan.requirements, STANDS_ALONE * plan.stands_alone])
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def site_packages_of(self, package: StoredPackage) -> list[Path]:
        """Folders of modules, the package's own first; empty: the shared runtime's alone."""
        if not self.plan(package).requirements:
            return []
        home = self._home(package)
        own, below = self._installer.site_packages(home), self._installer.site_packages(self._runtime.parent.parent)
        return [own] if (home / STANDS_ALONE).exists() else [own, below]

    def log_of(self, package: StoredPackage) -> str:
        """Log of building the package's environment, without paths of this machine."""
        key = self.key_of(package)
        path = (self._folder / key).with_suffix(".log")
        return self._paths.clean(path.read_text(errors="replace")[-LOG_CHARACTERS:]) if key and path.exists() else ""

    def _home(self, package: StoredPackage) -> Path:
        return self._folder / self.key_of(package)

    async def build(self, package: StoredPackage) -> bool:
        """Was there anything to build? Two packages that ask for the same wait for one build.

        Raises SandboxError with the log's last lines.
        """
        if not self._runtime.exists():
            raise SandboxError("the environment runtime is missing: run `make setup`")
        async with self._building.setdefault(self.key_of(package), asyncio.Lock()):
            if self.is_built(package):
                if key := self.key_of(package):
                    touch(self._folder / key)
                return False
            try:
                await self._build(package)
            except SandboxError as error:
                raise SandboxError(self._paths.clean(str(error))) from error
            return True

    async def compile(self, package: StoredPackage, names: Sequence[str]) -> None:
        """Bytecode for files of the package's own virtual environment, for the servers to come."""
        key = self.key_of(package)
        if not key or key in self._compiling:
            return
        self._compiling.add(key)
        try:
            home = self._folder / key
            await compile_files(self._runtime, self._installer.site_packages(home), names)
        finally:
            self._compiling.remove(key)

    async def tidy(self, in_use: set[str]) -> None:
        """Enforce the limit. `in_use` are keys; environments being built are in use too."""
        building = {key for key, lock in self._building.items() if lock.locked()}
        await asyncio.to_thread(tidy, self._folder, self._max_bytes, in_use | building)
        await asyncio.to_thread(self._installer.tidy, self._max_bytes // 4)

    async def _build(self, package: StoredPackage) -> None:
        home = self._home(package)
        unfinished, links = home.with_suffix(".new"), home.with_suffix(".wheels")
        self._folder.mkdir(parents=True, exist_ok=True)
        log = home.with_suffix(".log")
        log.write_text("")
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                wheels, stands_alone = await self._resolve(self.plan(package), self._alone(package), links, log)
                append(log, "".join(f"{wheel.name}=={wheel.version}\n" for wheel in wheels))
                await self._installer.install(unfinished, wheels, log, stands_alone=stands_alone)
        except TimeoutError:
            raise SandboxError(f"the package's environment was not built in {BUILD_SECONDS:g} s") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, links, ignore_errors=True)
        unfinished.rename(home)

    async def _resolve(self, plan: Plan, alone: tuple[str, ...], links: Path, log: Path) -> tuple[list[Wheel], bool]:
        """Return the wheels to install and whether the environment is standalone.

        On top of the shared runtime where its versions allow that. Wheels that exist come first, those to build second.
        """
        failed: NotResolved | None = None
        for may_build in (False, True):
            if not plan.stands_alone:
                try:
                    wheels = await self._wheels(plan.requirements, self._pinned(), links, log, may_build=may_build)
                except NotResolved as error:
                    failed = error
                else:
                    return [wheel for wheel in wheels if not self._is_provided(wheel)], False
            try:
                return await self._wheels(alone, (), links, log, may_build=may_build), True
            except NotResolved as error:
                failed = error
            if not may_build and not failed.without_wheel:
                break
        raise failed or SandboxError("the package's requirements cannot be met")

    async def _wheels(
        self, requirements: Sequence[str], constraints: Sequence[str], links: Path, log: Path, *, may_build: bool
    ) -> list[Wheel]:
        """Resolve, once more for every distribution that had to be built. Raises NotResolved."""
        for _ in range(ROUNDS if may_build else 1):
            try:
                return await self._installer.resolve(requirements, log, constraints=constraints, links=links)
            except NotResolved as error:
                if not may_build or not await self._supply(error, links, log):
                    raise
        raise SandboxError(f"the package needs more than {ROUNDS} distributions that have no wheel")

    async def _supply(self, error: NotResolved, links: Path, log: Path) -> bool:
        if self._sources is not None:
            return await self._sources.supply(error.without_wheel, links, log)
        if error.without_wheel:
            append(log, "\n# what has no wheel is built in the sandbox, which is not in force here\n")
        return False

    def _pinned(self) -> list[str]:
        """Constraints that keep what the shared runtime has."""
        return [f"{name}=={version}" for name, version in sorted((self._provided or {}).items())]

    def _is_provided(self, wheel: Wheel) -> bool:
        has = (self._provided or {}).get(str(canonicalize_name(wheel.name)))
        return has is not None and has == Version(wheel.version)


def _installed(python: Path) -> dict[str, Version]:
    """List the distributions of an interpreter by canonical name."""
    found: dict[str, Version] = {}

    for folder in (python.parent.parent).glob("lib/python*/site-packages/*.dist-info"):
        if match := _VERSION_FILE.match(folder.name):
            try:
                found[str(canonicalize_name(match["name"]))] = Version(match["version"])
            except InvalidVersion:
                continue  # pip does not see it either
    return found
