"""The virtual environments that packages run in: the shared runtime, one on top of it, or one that stands alone.

A package's own holds what it asks for, built once per set of requirements. What the shared runtime has already, in a
fitting version, is not installed again. A package that pins what the runtime has in another version stands alone.
"""

import asyncio
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from backend.domain.errors import SandboxError
from workers.environments.bytecode import compile_files
from workers.environments.inside.jail import ENVIRONMENTS_FOLDER
from workers.environments.packages import StoredPackage
from workers.environments.pip import LOG_CHARACTERS, Pip, append
from workers.environments.sources import ROUNDS, Sources
from workers.environments.tidying import tidy, touch
from workers.environments.uv import Uv

BUILD_SECONDS = 600.0
MAX_BYTES = 20 << 30
_SITE_PACKAGES = "import site; print(site.getsitepackages()[0])"
_STANDS_ALONE = "stands-alone"
"""A file in a virtual environment that does not look into the shared runtime."""
_SERVES = "openenv>=0.2"
"""What a package that stands alone needs at least to be served; its own pin decides further."""
_WHOLE = {"openenv", "openenv-core", "uvicorn", "pydantic", "fastapi"}
"""What the runtime has with all the extras that packages ask for."""
_VERSION_FILE = re.compile(r"^(?P<name>.+)-(?P<version>[^-]+)\.dist-info$")


Prepare = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be installed for a package."""

    requirements: tuple[str, ...]
    """Empty: the shared runtime will do."""
    stands_alone: bool = False


class VirtualEnvironments:
    """Bounded: a package whose own was removed gets it again when it is wanted."""

    def __init__(self, pip: Pip, folder: Path, sources: Sources | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Without `sources`, what has no wheel cannot be installed."""
        self._max_bytes = max_bytes
        self._pip, self._runtime, self._folder, self._sources = pip, pip.python, folder, sources
        self._uv = Uv(pip)
        self._building: dict[str, asyncio.Lock] = {}
        self._compiling: set[str] = set()
        self._provided: dict[str, Version] | None = None

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
        return not self.plan(package).requirements or self._python(package).exists()

    def key_of(self, package: StoredPackage) -> str:
        """Packages of the same key share a warm interpreter; empty: the shared runtime's."""
        plan = self.plan(package)
        if not plan.requirements:
            return ""
        asked = "\n".join([str(self._runtime), *plan.requirements, _STANDS_ALONE * plan.stands_alone])
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def pythons_of(self, package: StoredPackage) -> list[Path]:
        """The interpreter to run, then the one whose environment it stands on."""
        return [self._python(package), self._runtime] if self.plan(package).requirements else [self._runtime]

    def log_of(self, package: StoredPackage) -> str:
        """What pip said when the package's virtual environment was built, or was tried to be."""
        key = self.key_of(package)
        path = (self._folder / key).with_suffix(".log")
        return path.read_text()[-LOG_CHARACTERS:] if key and path.exists() else ""

    def _python(self, package: StoredPackage) -> Path:
        return self._folder / self.key_of(package) / "bin" / "python"

    async def build(self, package: StoredPackage) -> bool:
        """Was there anything to build? Two packages that ask for the same wait for one build.

        Raises SandboxError with the log's last lines.
        """
        if not self._runtime.exists():
            raise SandboxError(f"the environment runtime is missing ({self._runtime}): run `make setup`")
        async with self._building.setdefault(self.key_of(package), asyncio.Lock()):
            if self.is_built(package):
                if key := self.key_of(package):
                    touch(self._folder / key)
                return False
            await self._build(package)
            return True

    async def compile(self, package: StoredPackage, names: Sequence[str]) -> None:
        """Bytecode for files of the package's own virtual environment, for the servers to come."""
        key = self.key_of(package)
        if not key or key in self._compiling:
            return
        self._compiling.add(key)
        try:
            home = self._folder / key
            await compile_files(self._runtime, home, names, home.with_suffix(".log"))
        finally:
            self._compiling.remove(key)

    async def tidy(self, in_use: set[str]) -> None:
        """Keep the bound; `in_use` are keys. What is being built is in use too."""
        building = {key for key, lock in self._building.items() if lock.locked()}
        await asyncio.to_thread(tidy, self._folder, self._max_bytes, in_use | building)

    async def _build(self, package: StoredPackage) -> None:
        home = self._python(package).parent.parent
        unfinished = home.with_name(home.name + ".new")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        log = home.with_suffix(".log")
        log.write_text("")
        plan = self.plan(package)
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                alone = self._alone(package)
                if not await self._build_by_uv(unfinished, log, plan, alone):
                    await self._build_by_pip(unfinished, log, plan, alone)
        except TimeoutError:
            raise SandboxError(f"the package's virtual environment was not built in {BUILD_SECONDS:g} s") from None
        finally:
            shutil.rmtree(unfinished.with_suffix(".wheels"), ignore_errors=True)
        unfinished.rename(home)

    async def _build_by_uv(self, home: Path, log: Path, plan: Plan, alone: tuple[str, ...]) -> bool:
        """False when something has no wheel, or uv cannot work here."""
        if not plan.stands_alone:
            prepare = await self._looking_below(log)
            await self._make(home, log, prepare)
            with self._constraints(home) as constraints:
                if await self._uv.install(
                    home, log, plan.requirements, provided=self._provided or {}, constraints=constraints
                ):
                    return True
        await self._make(home, log)
        if is_done := await self._uv.install(home, log, alone):
            (home / _STANDS_ALONE).touch()
        return is_done

    async def _build_by_pip(self, home: Path, log: Path, plan: Plan, alone: tuple[str, ...]) -> None:
        if plan.stands_alone or not await self._stands_on_the_runtime(home, log, plan):
            await self._install(home, log, alone)
            (home / _STANDS_ALONE).touch()

    async def _stands_on_the_runtime(self, home: Path, log: Path, plan: Plan) -> bool:
        """Install on top of the shared runtime; False when that would need other versions of what it has."""
        prepare = await self._looking_below(log)
        try:
            with self._constraints(home) as constraints:
                await self._install(home, log, plan.requirements, "--constraint", str(constraints), prepare=prepare)
        except SandboxError as error:
            if "ResolutionImpossible" not in str(error) and "conflict" not in str(error):
                raise
            append(log, "\n# the shared runtime does not fit: building a virtual environment that stands alone\n")
            return False
        return True

    async def _looking_below(self, log: Path) -> Prepare:
        """Makes a virtual environment see what the shared runtime has."""
        below = (await self._pip.run(log, "-c", _SITE_PACKAGES)).strip().splitlines()[-1]

        def prepare(home: Path) -> None:
            site_packages = next(home.glob("lib/python*/site-packages"))
            inside = Path(ENVIRONMENTS_FOLDER, "1", site_packages.relative_to(home))
            (site_packages / "runtime.pth").write_text(f"{below}\n{inside}\n")  # the one that exists is taken

        return prepare

    @contextmanager
    def _constraints(self, home: Path) -> Iterator[Path]:
        """A file that says what the shared runtime has."""
        file = home.with_suffix(".constraints")
        provided = sorted((self._provided or {}).items())
        file.write_text("".join(f"{name}=={version}\n" for name, version in provided))
        try:
            yield file
        finally:
            file.unlink()

    async def _make(self, home: Path, log: Path, prepare: Prepare = lambda home: None) -> None:
        """An empty virtual environment."""
        shutil.rmtree(home, ignore_errors=True)
        await self._pip.make_environment(home, log)
        prepare(home)

    async def _install(
        self,
        home: Path,
        log: Path,
        requirements: tuple[str, ...],
        *more: str,
        prepare: Prepare = lambda home: None,
    ) -> None:
        """Make the virtual environment and fill it, once more for every distribution that had to be built."""
        wheels = home.with_suffix(".wheels")
        for _ in range(ROUNDS):
            await self._make(home, log, prepare)
            said = log.stat().st_size
            try:
                return await self._pip.install(home, log, "--find-links", str(wheels), *more, *requirements)
            except SandboxError:
                if not await self._supply(log.read_bytes()[said:].decode(errors="replace"), wheels, log):
                    raise
        raise SandboxError(f"the package needs more than {ROUNDS} distributions that have no wheel")

    async def _supply(self, said: str, wheels: Path, log: Path) -> bool:
        if self._sources is not None:
            return await self._sources.supply(said, wheels, log)
        append(log, "\n# what has no wheel is built in the sandbox, which is not in force here\n")
        return False


def _installed(python: Path) -> dict[str, Version]:
    """The distributions beside an interpreter, by canonical name."""
    found: dict[str, Version] = {}

    for folder in (python.parent.parent).glob("lib/python*/site-packages/*.dist-info"):
        if match := _VERSION_FILE.match(folder.name):
            try:
                found[str(canonicalize_name(match["name"]))] = Version(match["version"])
            except InvalidVersion:
                continue  # pip does not see it either
    return found
