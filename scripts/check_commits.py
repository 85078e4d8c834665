"""Only the edge commits: no call of `.commit()` in the application outside `backend/core/session.py`."""

import ast
import sys
from pathlib import Path

ALLOWED = {Path("backend/core/session.py")}


def main() -> int:
    found = [
        f"{path}:{getattr(call, 'lineno', 1)}: `.commit()`; use `transaction()`, or `flush()` for an id"
        for folder in ("backend", "workers")
        for path in sorted(Path(folder).rglob("*.py"))
        if path not in ALLOWED and not path.is_relative_to("workers/library")
        for call in ast.walk(ast.parse(path.read_text()))
        if _commits(call)
    ]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


def _commits(node: ast.AST) -> bool:
    """`session.commit()` or the like, without arguments; a driver's own `connection` is no session."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "commit"):
        return False
    if node.args:
        return False
    return not (isinstance(node.func.value, ast.Name) and node.func.value.id == "connection")


if __name__ == "__main__":
    sys.exit(main())
