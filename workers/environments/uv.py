"""uv installs in seconds what has wheels; pip does it otherwise, slower, and says why where neither can.

It looks where pip is configured to look, and builds nothing.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from backend.domain.errors import SandboxError
from workers.environments.pip import Pip, append, run_logged
from workers.environments.pip_options import ask_pip, uv_options, uv_variables


class Uv:
    """Fills virtual environments; remembers what pip is told."""

    def __init__(self, pip: Pip) -> None:
        self._pip = pip
        self._told: dict[str, str] | None = None

    async def install(
        self,
        home: Path,
        log: Path,
        requirements: Sequence[str],
        *,
        provided: Mapping[str, Version] = {},
        constraints: Path | None = None,
    ) -> bool:
        """Into the virtual environment at `home`, without what it sees elsewhere in the resolved version.

        False when uv does not find everything as wheels, or cannot work here; its words are in the log then.
        """
        try:
            resolved = await self._resolved(home, log, requirements, constraints)
            missing = [line for line in resolved if not _is_provided(line, provided)]
            append(log, "".join(f"{line}\n" for line in missing))
            if missing:
                await self._uv(home, log, "install", "--no-deps", "-r", "-", said=missing)
        except (SandboxError, FileNotFoundError) as error:
            append(log, f"\n# uv: {error}\n# pip tries\n")
            return False
        return True

    async def _resolved(
        self, home: Path, log: Path, requirements: Sequence[str], constraints: Path | None
    ) -> list[str]:
        """What the requirements come to, each with its version."""
        more = ["--constraints", str(constraints)] if constraints else []
        options = ("--no-header", "--no-annotate", "--strip-extras", *more, "-")
        told = await self._uv(home, log, "compile", *options, said=requirements)
        return [line for line in told.splitlines() if line.strip() and not line.startswith(("#", "-"))]

    async def _uv(self, home: Path, log: Path, command: str, *arguments: str, said: Sequence[str]) -> str:
        if self._told is None:
            self._told = await asyncio.to_thread(ask_pip, self._pip.python)
        return await run_logged(
            log,
            *(find_uv_bin(), "pip", command, "--quiet", "--python", str(home / "bin" / "python")),
            *("--only-binary", ":all:", *uv_options(self._told), *arguments),
            environment=dict(os.environ) | uv_variables(self._told),  # noqa: TID251
            said="\n".join(said),
            is_kept=False,
        )


def _is_provided(line: str, provided: Mapping[str, Version]) -> bool:
    requirement = Requirement(line)
    has = provided.get(str(canonicalize_name(requirement.name)))
    return has is not None and not requirement.url and requirement.specifier.contains(has, prereleases=True)
