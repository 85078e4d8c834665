"""The virtual environments that packages run in: the shared runtime, one on top of it, or a standalone one.

A package's own environment holds its requirements, built once per set of requirements. Requirements that the shared
runtime has in a matching version are not installed again. A package that pins a different version is standalone.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from backend.domain.errors import SandboxError
from workers.commands import Bounds, CommandStopped, run_command
from workers.environments.inside.jail import place_of
from workers.environments.packages import StoredPackage, evictable
from workers.environments.sources import ROUNDS, SourceBuilder
from workers.environments.uv import NotResolved, Wheel, append, path_filter
from workers.environments.wheels import STANDALONE_MARKER, Installer, remove_folder

BUILD_SECONDS = 600.0
_WHOLE = {"openenv", "openenv-core", "uvicorn", "pydantic", "fastapi"}
"""The runtime's requirements with all extras that packages request."""
_COMPILE = "import compileall, os, sys; os.nice(10); sys.exit(not compileall.main())"
_COMPILE_BOUNDS = Bounds(300, output_bytes=4 << 20, limits={"AS": 1 << 30, "CPU": 240, "FSIZE": 64 << 20, "NOFILE": 64})


class VirtualEnvironments:
    """All environments of this host, up to a size: one that was removed is built again on demand."""

    def __init__(self, installer: Installer, builder: SourceBuilder | None = None, max_bytes: int = 20 << 30) -> None:
        """Without `builder`, distributions without a wheel cannot be installed."""
        self._max_bytes = max_bytes
        self.runtime = installer.runtime
        """The shared runtime's interpreter, the only one that runs anything."""
        self._installer, self._builder, self._folder = installer, builder, installer.folder
        self._without_paths = path_filter(
            {self._folder: "<environments>", self._folder.parent: "<data>", self.runtime.parent.parent: "<runtime>"}
        )
        self._building: dict[str, asyncio.Lock] = {}
        self._compiling: set[str] = set()

    @cached_property
    def _provided(self) -> dict[str, Version]:
        provided: dict[str, Version] = {}
        for folder in self.runtime.parent.parent.glob("lib/python*/site-packages/*.dist-info"):
            if match := re.fullmatch(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info", folder.name):
                with contextlib.suppress(InvalidVersion):  # pip does not see it either
                    provided[canonicalize_name(match["name"])] = Version(match["version"])
        return provided

    def plan(self, package: StoredPackage) -> tuple[tuple[str, ...], bool]:
        """The requirements to install, none if the shared runtime is enough; and whether that makes it standalone."""
        missing, is_standalone = [], False
        for line in package.requirements:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate():
                continue
            name = canonicalize_name(requirement.name)
            version = self._provided.get("openenv" if name == "openenv-core" else name)
            if version is None or (requirement.extras and name not in _WHOLE):
                missing.append(line)
            elif not requirement.specifier.contains(version, prereleases=True):
                is_standalone = True
        return (_alone(package) if is_standalone else tuple(missing)), is_standalone

    def key_of(self, package: StoredPackage) -> str:
        """Packages with the same key share a warm interpreter; empty: the shared runtime's."""
        requirements, is_standalone = self.plan(package)
        if not requirements:
            return ""
        layout = "2"  # one of another layout is built again
        parts = [layout, str(self.runtime), *requirements, STANDALONE_MARKER * is_standalone]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def site_packages_of(self, package: StoredPackage) -> list[Path]:
        """Folders of modules, the package's own first; empty: the shared runtime's alone."""
        key = self.key_of(package)
        if not key:
            return []
        home, shared = self._folder / key, self.runtime.parent.parent
        homes = [home] if (home / STANDALONE_MARKER).exists() else [home, shared]
        return [self._installer.site_packages(each) for each in homes]

    def log_of(self, package: StoredPackage) -> str:
        """Log of building the package's environment, without paths of this machine."""
        key = self.key_of(package)
        path = (self._folder / key).with_suffix(".log")
        return self._without_paths(path.read_text(errors="replace")[-100_000:]) if key and path.exists() else ""

    async def build(self, package: StoredPackage) -> bool:
        """Build the environment if it is missing; returns whether it was. Concurrent callers wait for one build.

        Raises SandboxError with the log's last lines.
        """
        if not self.runtime.exists():
            raise SandboxError("the environment runtime is missing: run `make setup`")
        key = self.key_of(package)
        if not key:
            return False
        home = self._folder / key
        unfinished, links, log = home.with_suffix(".new"), home.with_suffix(".wheels"), home.with_suffix(".log")
        async with self._building.setdefault(key, asyncio.Lock()):
            with contextlib.suppress(FileNotFoundError):
                os.utime(home)  # mark it as used
                return False
            self._folder.mkdir(parents=True, exist_ok=True)
            log.write_text("")
            try:
                async with asyncio.timeout(BUILD_SECONDS):
                    wheels, is_standalone = await self._resolve(package, links, log)
                    append(log, "".join(f"{wheel.name}=={wheel.version}\n" for wheel in wheels))
                    await self._installer.install(unfinished, wheels, log, is_standalone=is_standalone)
            except TimeoutError:
                raise SandboxError(f"the package's environment was not built in {BUILD_SECONDS:g} s") from None
            except SandboxError as error:
                raise SandboxError(self._without_paths(str(error))) from error
            finally:
                await asyncio.to_thread(shutil.rmtree, links, ignore_errors=True)
            unfinished.rename(home)
            return True

    async def _resolve(self, package: StoredPackage, links: Path, log: Path) -> tuple[list[Wheel], bool]:
        """Return the wheels to install and whether the environment is standalone.

        On top of the shared runtime if its versions allow that. Existing wheels come first, those to build second.
        """
        (requirements, is_standalone), provided = self.plan(package), self._provided
        pinned = [f"{name}=={version}" for name, version in sorted(provided.items())]
        for may_build in (False, True):
            with contextlib.suppress(NotResolved):
                if not is_standalone:
                    wheels = await self._wheels(requirements, pinned, links, log, may_build=may_build)
                    return [w for w in wheels if provided.get(canonicalize_name(w.name)) != Version(w.version)], False
            try:
                return await self._wheels(_alone(package), (), links, log, may_build=may_build), True
            except NotResolved as error:
                if may_build or not error.without_wheel:
                    raise
        raise AssertionError

    async def _wheels(
        self, requirements: Sequence[str], constraints: Sequence[str], links: Path, log: Path, *, may_build: bool
    ) -> list[Wheel]:
        """Resolve, once more for every distribution that had to be built. Raises NotResolved."""
        for _ in range(ROUNDS if may_build else 1):
            try:
                return await self._installer.index.resolve(requirements, log, constraints=constraints, links=links)
            except NotResolved as error:
                if not may_build:
                    raise
                if self._builder is None and error.without_wheel:
                    note = "distributions without a wheel are built in the sandbox, which is not in use here"
                    append(log, f"\n# {note}\n")
                if not self._builder or not await self._builder.build_missing(error.without_wheel, links, log):
                    raise
        raise SandboxError(f"the package needs more than {ROUNDS} distributions that have no wheel")

    async def compile(self, package: StoredPackage, names: Sequence[str]) -> None:
        """Compile files of the package's own virtual environment to bytecode, for later servers.

        A server cannot write it itself, and would compile the libraries of its package again, for seconds. All files of
        an environment would take minutes; so a server reports which ones it had to compile. Nothing of them runs: a
        process of the shared runtime, with limits, reads them as text.
        """
        key = self.key_of(package)
        if not key or key in self._compiling:
            return
        self._compiling.add(key)
        try:
            site_packages = self._installer.site_packages(self._folder / key)
            paths = await asyncio.to_thread(own_files, site_packages, names)
            shown_as = ("-s", str(site_packages), "-p", place_of(0))  # paths in tracebacks, without ours
            command = (str(self.runtime), "-I", "-S", "-B", "-c", _COMPILE, "-qq", *shown_as, "-i", "-")
            if paths:
                # some file may be for another Python, or made to be expensive
                with contextlib.suppress(CommandStopped):
                    given = "\n".join(map(str, paths))
                    await run_command(command, _COMPILE_BOUNDS, given=given, environment={"LANG": "C.UTF-8"})
        finally:
            self._compiling.remove(key)

    async def evict(self, in_use: set[str]) -> None:
        """Enforce the disk limit. `in_use` are keys; environments being built are in use too."""
        building = {key for key, lock in self._building.items() if lock.locked()}
        await asyncio.to_thread(evict, self._folder, self._max_bytes, in_use | building)
        await asyncio.to_thread(self._installer.evict, self._max_bytes // 4)


def _alone(package: StoredPackage) -> tuple[str, ...]:
    """The requirements of a standalone environment: at least what serving it needs; its own pins are added."""
    names = [canonicalize_name(Requirement(line).name) for line in package.requirements]
    is_served = any(name.startswith("openenv") for name in names)
    return package.requirements if is_served else (*package.requirements, "openenv>=0.2")


def own_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Python files that are in a folder, whatever a server reported."""
    inside = folder.resolve()
    return [
        folder / name
        for name in names
        if name.endswith(".py") and "\n" not in name and (path := (folder / name).resolve()).is_relative_to(inside)
        if path.is_file()
    ]


def evict(folder: Path, max_bytes: int, in_use: Collection[str]) -> list[str]:
    """Remove the least recently used environments until the rest fits; never one in use. Returns their names.

    Takes seconds: not for an event loop.
    """
    for leftover in folder.glob("*.gone"):
        shutil.rmtree(leftover, ignore_errors=True)
    sizes, removed = dict[Path, int](), list[Path]()
    for home in [path for path in folder.iterdir() if path.is_dir() and not path.suffix] if folder.is_dir() else []:
        if any(os.path.lexists(home / name) for name in ("bin", "pyvenv.cfg")):
            removed.append(home)  # only environments of earlier versions have an interpreter; none is used again
            continue
        sizes[home] = 0
        for parent, _, names in os.walk(home):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    sizes[home] += os.lstat(os.path.join(parent, name)).st_blocks * 512
    removed += evictable(sizes, max_bytes, in_use)
    for home in removed:
        remove_folder(home)
        home.with_suffix(".log").unlink(missing_ok=True)
    return [home.name for home in removed]
