"""Check imports by kind of file, which import-linter's contracts cannot name, and that no modules import in a circle.

Packages of the backend may use each other's services and queries in both directions; single modules may not.
"""

import re
import sys
from collections.abc import Iterator

import grimp

SLICE = re.compile(r"backend\.(?!cli|core|domain|showcase|supervisor|web)\w+\.(?:\w+\.)*(\w+)$")
OF_TABLES = ("backend.domain", "backend.core.tables", "backend.errors")
APP = "backend.app"


def main() -> int:
    graph = grimp.build_graph("backend", "workers", exclude_type_checking_imports=True)
    imports = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}
    problems = [*_forbidden(imports), *(f"in a circle: {' -> '.join(circle)}" for circle in circles(imports))]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


def kind(module: str) -> str:
    """`pages` of `backend.runs.tab_pages`; empty outside of the slices."""
    match = SLICE.match(module)
    return match.group(1).rpartition("_")[2] if match else ""


def _forbidden(imports: dict[str, list[str]]) -> Iterator[str]:
    for importer, modules in imports.items():
        for imported in modules:
            if kind(imported) in {"pages", "operations"} and importer != APP:
                yield f"{importer} -> {imported}: pages and operations are imported by {APP} only"
            if kind(importer) == "queries" and kind(imported) == "service":
                yield f"{importer} -> {imported}: queries read, and import no service"
            if kind(importer) == "tables" and not imported.startswith(OF_TABLES):
                yield f"{importer} -> {imported}: tables name classes of other tables as strings"


def circles(imports: dict[str, list[str]]) -> Iterator[list[str]]:
    """The first circle among what remains once modules that import nothing are taken away one after the other."""
    left = {module: set(modules) for module, modules in imports.items()}
    while left:
        free = {module for module, modules in left.items() if not modules & left.keys()}
        if free:
            left = {module: modules for module, modules in left.items() if module not in free}
            continue
        path = [min(left)]
        while (following := min(left[path[-1]] & left.keys())) not in path:
            path.append(following)
        yield [*path[path.index(following) :], following]
        return


if __name__ == "__main__":
    raise SystemExit(main())
