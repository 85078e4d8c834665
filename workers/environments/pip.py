"""The runtime's pip, run for others: nothing of what it installs is imported, and what it says goes into a log."""

import asyncio
import re
from pathlib import Path

from backend.domain.errors import SandboxError

LOG_CHARACTERS = 100_000
_CREDENTIALS = re.compile(r"(https?://)[^/\s@]+@")
_INDEX = re.compile(r"^(Looking in (indexes|links):|WARNING: Location ).*$", re.MULTILINE)
WHEELS_ONLY = ("--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--no-compile")
"""pip itself builds nothing: that would run foreign code outside the sandbox."""


class Pip:
    def __init__(self, runtime_python: Path) -> None:
        self.python = runtime_python

    async def install(self, home: Path, log: Path, *arguments: str) -> None:
        """Into the virtual environment at `home`. Raises SandboxError with the last lines of what pip said."""
        python = str(home / "bin" / "python")
        await self.run(log, "-m", "pip", "--python", python, "install", *WHEELS_ONLY, *arguments)

    async def make_environment(self, home: Path, log: Path) -> None:
        await self.run(log, "-m", "venv", "--without-pip", str(home))

    async def run(self, log: Path, *arguments: str) -> str:
        """Run the runtime's Python; its output goes to the log."""
        return await run_logged(log, str(self.python), *arguments)


async def run_logged(
    log: Path,
    *command: str,
    environment: dict[str, str] | None = None,
    said: str = "",
    is_kept: bool = True,
) -> str:
    """Run a program that reads what is `said`, and return what it prints.

    That goes to the log, without credentials; or only where it fails, unless it `is_kept`. Raises SandboxError with its
    last lines.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate(said.encode()))[0].decode(errors="replace")[-LOG_CHARACTERS:]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    output = _CREDENTIALS.sub(r"\1", _INDEX.sub("", output))
    if is_kept or process.returncode:
        append(log, output)
    if process.returncode:
        last = "\n".join(line for line in output.strip().splitlines() if line.strip()).splitlines()[-15:]
        raise SandboxError("\n".join(["the package's virtual environment could not be built:", *last]))
    return output


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)
