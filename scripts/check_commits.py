"""Only the edge commits: no call of `.commit()` in the application outside `backend/db/session.py`."""

import ast
import sys
from pathlib import Path

ALLOWED = {Path("backend/db/session.py")}


def main() -> int:
    found = [
        f"{path}:{call.lineno}: `.commit()`; use `transaction()`, or `flush()` for an id"
        for folder in ("backend", "workers")
        for path in sorted(Path(folder).rglob("*.py"))
        if path not in ALLOWED and not path.is_relative_to("workers/library")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "commit"
    ]
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
