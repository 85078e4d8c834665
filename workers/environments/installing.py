"""Installing requirements into a folder of modules: uv resolves them, our own reader unpacks the wheels.

An environment is `lib/pythonX.Y/site-packages` and nothing else: no interpreter, no programs, no configuration. What
runs it is always the shared runtime's interpreter, inside both rings.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from backend.domain.errors import SandboxError
from workers.environments.indexes import IndexAccess
from workers.environments.uv import Uv, python_version
from workers.environments.wheels import MAX_TOTAL_BYTES, Wheel, WheelStore, verify_layout

STANDS_ALONE = "stands-alone"
"""A file in an environment that does not see the shared runtime's packages."""


class Installer:
    def __init__(self, runtime: Path, folder: Path, max_bytes: int = MAX_TOTAL_BYTES) -> None:
        """`runtime` is the shared runtime's interpreter; `folder` has the environments."""
        self.runtime, self.folder = runtime, folder
        access = IndexAccess(runtime)
        self._uv = Uv(access, folder / "uv.cache")
        self._store = WheelStore(folder / "wheels.store", access, min(max_bytes, MAX_TOTAL_BYTES))

    async def resolve(
        self, requirements: Sequence[str], log: Path, *, constraints: Sequence[str] = (), links: Path | None = None
    ) -> list[Wheel]:
        """Raises NotResolved, or SandboxError where uv cannot work."""
        return await self._uv.resolve(requirements, log, constraints=constraints, links=links)

    async def install(self, home: Path, wheels: Sequence[Wheel], log: Path, *, stands_alone: bool = False) -> None:
        """Make the environment at `home`. Raises SandboxError; nothing is left of it then."""
        shutil.rmtree(home, ignore_errors=True)
        try:
            await self._store.install(wheels, self.site_packages(home), home.with_suffix(".downloads"), log)
            if stands_alone:
                (home / STANDS_ALONE).touch()
            verify_layout(home, self.site_packages(home), [STANDS_ALONE])
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    async def check(self, wheel: Wheel, work: Path, log: Path) -> None:
        """Unpack a wheel that was built here, before uv reads it. Raises SandboxError."""
        await self._store.provide([wheel], work, log)

    def site_packages(self, home: Path) -> Path:
        """Of an environment, or of the shared runtime."""
        if not self.runtime.exists():
            raise SandboxError("the environment runtime is missing: run `make setup`")
        version = python_version(self.runtime)
        return home / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"

    def tidy(self, max_bytes: int) -> None:
        """Takes seconds: not for an event loop."""
        self._store.tidy(max_bytes)
