"""Bytecode for what a server imports from its package's own virtual environment, which it cannot write itself.

Without it each server compiles the libraries of its package anew, for seconds. All files of an environment would take
minutes; so a server says which ones it had to compile, and these are compiled once, beside it. Nothing of them runs.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from backend.domain.errors import SandboxError
from workers.environments.inside.jail import ENVIRONMENTS_FOLDER
from workers.environments.pip import run_logged

_NICELY = "import compileall, os, sys; os.nice(10); sys.exit(not compileall.main())"


async def compile_files(python: Path, home: Path, names: Sequence[str], log: Path) -> None:
    """With the interpreter that the environment at `home` was made with. What is not one of its files is left alone."""
    paths = await asyncio.to_thread(own_files, home, names)
    if not paths:
        return
    shown_as = ("-s", str(home), "-p", f"{ENVIRONMENTS_FOLDER}/0")  # tracebacks do not tell where it lies
    with contextlib.suppress(SandboxError):  # some file may be for another Python
        await run_logged(
            log,
            *(str(python), "-I", "-c", _NICELY, "-qq", *shown_as, "-i", "-"),
            said="\n".join(map(str, paths)),
            is_kept=False,
        )


def own_files(home: Path, names: Sequence[str]) -> list[Path]:
    """Python files that lie in `home`, whatever a server said."""
    inside = home.resolve()
    return [
        home / name
        for name in names
        if name.endswith(".py") and "\n" not in name and (found := (home / name).resolve()).is_relative_to(inside)
        if found.is_file()
    ]
