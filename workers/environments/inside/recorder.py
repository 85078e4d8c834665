"""Records which branches of the package run, where a lease requests it. See `backend.domain.environments.branches`.

The package runs in the same process, so it could write this record, too. It cannot change the list of branches, which
Proctor reads from the source.
"""

import ast
import base64
import builtins
import mmap
import os
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType

from backend.domain.environments.branches import HIT, MAX_SOURCE, PASS, read_sources

BRANCHES_PATH = "/_proctor/branches"
NOT_RECORDED = "branches are recorded only where Proctor's env host starts the package's interpreter"


def record_branches(root: str) -> Callable[[], dict[str, object]]:
    """Make later imports from the package's folder `root` record their branches.

    Returns a function that reads the record and starts a new one: a byte for each branch of the package, as Base64.
    """
    files: dict[str, str] = {}
    for folder, _, names in os.walk(root):
        for path in [os.path.join(folder, name) for name in names if name.endswith(".py")]:
            if os.path.getsize(path) <= 4 * MAX_SOURCE:  # bytes of a character
                with open(path, "rb") as file:
                    files[os.path.relpath(path, root)] = file.read().decode(errors="replace")
    sources = read_sources(files)
    count = sum(len(source.branches) for source in sources)
    record = mmap.mmap(-1, count or 1)  # shared with processes that the package forks
    trees = {os.path.join(root, source.path): source.tree for source in sources}
    load_code = SourceFileLoader.get_code

    def passes(number: int, value: object) -> object:
        record[number if value else number + 1] = 1
        return value

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        tree = trees.get(os.path.abspath(loader.path))
        if tree is not None:
            try:
                return compile(ast.fix_missing_locations(tree), loader.path, "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass  # the plain import reports it
        return load_code(loader, name)

    def read() -> dict[str, object]:
        seen = record[:count]
        record[:count] = bytes(count)
        return {"executed": base64.b64encode(seen).decode()}

    vars(builtins)[HIT], vars(builtins)[PASS] = record.__setitem__, passes
    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    return read
