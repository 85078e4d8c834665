"""The virtual environments that packages run in: the shared runtime, one on top of it, or one that stands alone.

A package's own holds what it asks for, built once per set of requirements. What the shared runtime has already, in a
fitting version, is not installed again. A package that pins what the runtime has in another version stands alone.
"""

import asyncio
import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from backend.domain.errors import SandboxError
from workers.environments.inside.jail import ENVIRONMENTS_FOLDER
from workers.environments.packages import StoredPackage

BUILD_SECONDS = 600.0
LOG_CHARACTERS = 100_000
_SITE_PACKAGES = "import site; print(site.getsitepackages()[0])"
_STANDS_ALONE = "stands-alone"
"""A file in a virtual environment that does not look into the shared runtime."""
_SERVES = "openenv>=0.2"
"""What a package that stands alone needs at least to be served; its own pin decides further."""
_SERVERS = {"openenv", "openenv-core", "uvicorn"}
_WHOLE = {"openenv", "openenv-core", "uvicorn", "pydantic", "fastapi"}
"""What the runtime has with all the extras that packages ask for."""
_CREDENTIALS = re.compile(r"(https?://)[^/\s@]+@")
_INDEX = re.compile(r"^(Looking in (indexes|links):|WARNING: Location ).*$", re.MULTILINE)
_VERSION_FILE = re.compile(r"^(?P<name>.+)-(?P<version>[^-]+)\.dist-info$")


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be installed for a package."""

    requirements: tuple[str, ...]
    """Empty: the shared runtime will do."""
    stands_alone: bool = False


class VirtualEnvironments:
    def __init__(self, runtime_python: Path, folder: Path) -> None:
        self._runtime, self._folder = runtime_python, folder
        self._building: dict[str, asyncio.Lock] = {}
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

    def size_of(self, package: StoredPackage) -> int:
        """Bytes of the package's own virtual environment."""
        key = self.key_of(package)
        return sum(path.lstat().st_size for path in (self._folder / key).rglob("*")) if key else 0

    def _python(self, package: StoredPackage) -> Path:
        return self._folder / self.key_of(package) / "bin" / "python"

    async def build(self, package: StoredPackage) -> None:
        """Raises SandboxError with the log's last lines. Two packages that ask for the same wait for one build."""
        if not self._runtime.exists():
            raise SandboxError(f"the environment runtime is missing ({self._runtime}): run `make setup`")
        async with self._building.setdefault(self.key_of(package), asyncio.Lock()):
            if not self.is_built(package):
                await self._build(package)

    async def _build(self, package: StoredPackage) -> None:
        home = self._python(package).parent.parent
        unfinished = home.with_name(home.name + ".new")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        log = home.with_suffix(".log")
        log.write_text("")
        plan = self.plan(package)
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                if plan.stands_alone or not await self._stands_on_the_runtime(unfinished, log, plan):
                    await self._make(unfinished, log)
                    await self._install(unfinished, log, self._alone(package))
                    (unfinished / _STANDS_ALONE).touch()
        except TimeoutError:
            raise SandboxError(f"the package's virtual environment was not built in {BUILD_SECONDS:g} s") from None
        unfinished.rename(home)

    async def _stands_on_the_runtime(self, unfinished: Path, log: Path, plan: Plan) -> bool:
        """Install on top of the shared runtime; False when that would need other versions of what it has."""
        await self._make(unfinished, log)
        below = (await self._run(log, "-c", _SITE_PACKAGES)).strip().splitlines()[-1]
        site_packages = next(unfinished.glob("lib/python*/site-packages"))
        inside = Path(ENVIRONMENTS_FOLDER, "1", site_packages.relative_to(unfinished))
        (site_packages / "runtime.pth").write_text(f"{below}\n{inside}\n")  # the one that exists is taken
        constraints = unfinished / "constraints.txt"
        provided = self._provided or {}
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in sorted(provided.items())))
        try:
            await self._install(unfinished, log, plan.requirements, "--constraint", str(constraints))
        except SandboxError as error:
            if "ResolutionImpossible" not in str(error) and "conflict" not in str(error):
                raise
            with log.open("a") as file:
                file.write("\n# the shared runtime does not fit: building a virtual environment that stands alone\n")
            return False
        return True

    async def _make(self, unfinished: Path, log: Path) -> None:
        shutil.rmtree(unfinished, ignore_errors=True)
        await self._run(log, "-m", "venv", "--without-pip", str(unfinished))

    async def _install(self, home: Path, log: Path, requirements: tuple[str, ...], *more: str) -> None:
        # wheels only: building a source distribution would run foreign code outside the sandbox
        options = ("--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-compile", *more)
        python = str(home / "bin" / "python")
        await self._run(log, "-m", "pip", "--python", python, "install", *options, *requirements)

    async def _run(self, log: Path, *arguments: str) -> str:
        """Run the runtime's Python; its output goes to the log, bounded."""
        process = await asyncio.create_subprocess_exec(
            str(self._runtime),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output = (await process.communicate())[0].decode(errors="replace")[-LOG_CHARACTERS:]
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        output = _CREDENTIALS.sub(r"\1", _INDEX.sub("", output))
        with log.open("a") as file:
            file.write(output)
        if process.returncode:
            last = "\n".join(line for line in output.strip().splitlines() if line.strip()).splitlines()[-15:]
            raise SandboxError("\n".join(["the package's virtual environment could not be built:", *last]))
        return output


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
