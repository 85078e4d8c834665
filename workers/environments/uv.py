"""uv installs in seconds what has wheels; pip does it otherwise, slower, and says why where neither can.

uv reads neither pip's configuration nor its variables: it is told of the index, the folders of wheels, the certificate
and the constraints that pip is told of. It builds nothing.
"""

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from uv import find_uv_bin

from backend.domain.errors import SandboxError
from workers.environments.pip import Pip, append, run_logged

_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
"""pip's options that take any number of values, and uv's for each of them."""
_LINE = re.compile(r"^(?P<place>:env:|global|install)\.(?P<name>[\w-]+)=(?P<value>.+)$")
_PLACES = ("global", "install", ":env:")
"""A later one wins, as with pip."""
_SEPARATORS = re.compile(r"[\s,]+|\\n")


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
                python = str(home / "bin" / "python")
                await self._uv(log, "install", "--python", python, "--no-deps", "-r", "-", said=missing)
        except (SandboxError, FileNotFoundError) as error:
            append(log, f"\n# uv: {error}\n# pip tries\n")
            return False
        return True

    async def _resolved(
        self, home: Path, log: Path, requirements: Sequence[str], constraints: Path | None
    ) -> list[str]:
        """What the requirements come to, each with its version."""
        more = ["--constraints", str(constraints)] if constraints else []
        for own in (await self._of_pip()).get("constraint", "").split():
            more += ["--constraints", own]
        python = str(home / "bin" / "python")
        told = await self._uv(
            log,
            *("compile", "--python", python, "--no-header", "--no-annotate", "--strip-extras", *more, "-"),
            said=requirements,
        )
        return [line for line in told.splitlines() if line.strip() and not line.startswith(("#", "-"))]

    async def _uv(self, log: Path, command: str, *arguments: str, said: Sequence[str]) -> str:
        told = await self._of_pip()
        options = [part for name, option in _OPTIONS.items() for part in _each(option, told.get(name, ""))]
        if "no-index" in told:
            options.append("--no-index")
        return await run_logged(
            log,
            *(find_uv_bin(), "pip", command, "--quiet", "--no-config", "--only-binary", ":all:"),
            *("--index-strategy", "unsafe-best-match", *options, *arguments),
            environment=dict(os.environ) | _variables(told),  # noqa: TID251
            said="\n".join(said),
            is_kept=False,
        )

    async def _of_pip(self) -> dict[str, str]:
        """pip's options by name, whatever file or variable they come from."""
        if self._told is None:
            self._told = read_options(await self._pip.options())
        return self._told


def read_options(listed: str) -> dict[str, str]:
    """The options in what `pip config list` prints."""
    found: dict[tuple[str, str], str] = {}
    for line in listed.splitlines():
        if match := _LINE.match(line):
            found[match["place"], match["name"]] = str(ast.literal_eval(match["value"]))
    return {name: value for place in _PLACES for (at, name), value in found.items() if at == place}


def _each(option: str, values: str) -> Iterator[str]:
    for value in filter(None, _SEPARATORS.split(values)):
        yield from (option, value)


def _variables(told: Mapping[str, str]) -> dict[str, str]:
    found = {"UV_PYTHON_DOWNLOADS": "never"}
    if certificate := told.get("cert"):
        found["SSL_CERT_FILE"] = certificate
    if proxy := told.get("proxy"):
        found |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    if seconds := told.get("timeout") or told.get("default-timeout"):
        found["UV_HTTP_TIMEOUT"] = seconds
    return found


def _is_provided(line: str, provided: Mapping[str, Version]) -> bool:
    requirement = Requirement(line)
    has = provided.get(str(canonicalize_name(requirement.name)))
    return has is not None and not requirement.url and requirement.specifier.contains(has, prereleases=True)
