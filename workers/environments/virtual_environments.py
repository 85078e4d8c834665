"""The virtual environments that packages run in: the shared runtime, or one of their own on top of it.

One of their own holds what the package's `pyproject.toml` asks for, built once per set of requirements. What the
shared runtime has already, in a fitting version, is not installed again.
"""

import asyncio
import hashlib
import shutil
from pathlib import Path

from backend.domain.errors import SandboxError
from workers.environments.inside.jail import ENVIRONMENTS_FOLDER
from workers.environments.packages import StoredPackage

BUILD_SECONDS = 600.0
_SITE_PACKAGES = "import site; print(site.getsitepackages()[0])"


class VirtualEnvironments:
    def __init__(self, runtime_python: Path, folder: Path) -> None:
        self._runtime, self._folder = runtime_python, folder
        self._building: dict[str, asyncio.Lock] = {}

    def is_built(self, package: StoredPackage) -> bool:
        return not package.requirements or self._python(package).exists()

    def key_of(self, package: StoredPackage) -> str:
        """Packages of the same key share a warm interpreter; empty: the shared runtime's."""
        if not package.requirements:
            return ""
        asked = "\n".join([str(self._runtime), *package.requirements])
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def pythons_of(self, package: StoredPackage) -> list[Path]:
        """The interpreter to run, then the one whose environment it stands on."""
        return [self._python(package), self._runtime] if package.requirements else [self._runtime]

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
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        log = home.with_suffix(".log")
        log.write_text("")
        await self._run(log, "-m", "venv", "--without-pip", str(unfinished))
        below = (await self._run(log, "-c", _SITE_PACKAGES)).strip().splitlines()[-1]
        site_packages = next(unfinished.glob("lib/python*/site-packages"))
        inside = Path(ENVIRONMENTS_FOLDER, "1", site_packages.relative_to(unfinished))
        (site_packages / "runtime.pth").write_text(f"{below}\n{inside}\n")  # the one that exists is taken
        # wheels only: building a source distribution would run foreign code outside the sandbox
        options = ("--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-compile")
        python = str(unfinished / "bin" / "python")
        await self._run(log, "-m", "pip", "--python", python, "install", *options, *package.requirements)
        unfinished.rename(home)

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
            async with asyncio.timeout(BUILD_SECONDS):
                output = (await process.communicate())[0].decode(errors="replace")[-100_000:]
        except TimeoutError:
            raise SandboxError(f"the package's virtual environment was not built in {BUILD_SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        with log.open("a") as file:
            file.write(output)
        if process.returncode:
            last = "\n".join(output.strip().splitlines()[-15:])
            raise SandboxError(f"the package's virtual environment could not be built:\n{last}")
        return output
