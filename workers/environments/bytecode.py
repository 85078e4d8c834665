"""Bytecode for what a server imports from its package's own environment, which it cannot write itself.

Without it each server compiles the libraries of its package again, for seconds. All files of an environment would take
minutes; so a server reports which ones it had to compile, and these are compiled once. Nothing of them runs:
a process of the shared runtime, with limits, reads them as text.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from workers.commands import Bounds, CommandStopped, run_command
from workers.environments.inside.jail import place_of

_NICELY = "import compileall, os, sys; os.nice(10); sys.exit(not compileall.main())"
_BOUNDS = Bounds(300, output_bytes=4 << 20, limits={"AS": 1 << 30, "CPU": 240, "FSIZE": 64 << 20, "NOFILE": 64})


async def compile_files(python: Path, site_packages: Path, names: Sequence[str]) -> None:
    """With the shared runtime's interpreter. Other files are left alone."""
    paths = await asyncio.to_thread(own_files, site_packages, names)
    if not paths:
        return
    shown_as = ("-s", str(site_packages), "-p", place_of(0))  # tracebacks do not show where it lies
    with contextlib.suppress(CommandStopped):  # some file may be for another Python, or made to be expensive
        await run_command(
            (str(python), "-I", "-S", "-B", "-c", _NICELY, "-qq", *shown_as, "-i", "-"),
            _BOUNDS,
            given="\n".join(map(str, paths)),
            environment={"LANG": "C.UTF-8"},
        )


def own_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Python files that lie in a folder, whatever a server reported."""
    inside = folder.resolve()
    return [
        folder / name
        for name in names
        if name.endswith(".py") and "\n" not in name and (found := (folder / name).resolve()).is_relative_to(inside)
        if found.is_file()
    ]
