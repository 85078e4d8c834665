"""Where a package's code computes each reward column. Code is parsed, never executed."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from backend.domain.environments.manifest import PLATFORM_COLUMNS, RewardColumn
from backend.environments.validation import parse_sources

_TESTS = ("test_", "tests/", "client.py", "inference.py", "inference_words.py")


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """One column of the manifest and where it comes from."""

    column: RewardColumn
    path: str = ""
    """Empty: not found in the code."""
    line: int = 0
    """1-based."""
    words: str = ""
    """The first line of its docstring."""

    @property
    def is_by_platform(self) -> bool:
        return self.column.name in PLATFORM_COLUMNS and not self.path


@dataclass(frozen=True, slots=True)
class _Found:
    rank: int
    """0: marked as a column; 1: a function of the column's name; 2: its name as text, as in a dictionary of rewards."""
    path: str
    line: int
    words: str = ""


def column_sources(columns: list[RewardColumn], files: Mapping[str, str]) -> list[ColumnSource]:
    """In the manifest's order."""
    names = {column.name for column in columns}
    found: dict[str, _Found] = {}
    for path, tree in parse_sources({path: text for path, text in files.items() if not _is_aside(path)}).items():
        if not isinstance(tree, ast.Module):
            continue
        for name, place in _mentions(path, tree, names):
            if name not in found or place.rank < found[name].rank:
                found[name] = place
    return [_source(column, found.get(column.name)) for column in columns]


def functions_without_column(columns: list[RewardColumn], files: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """Methods that are marked as columns but carry no weight in the manifest: (name, path, line)."""
    names = {column.name for column in columns}
    lost = []
    for path, tree in parse_sources(files).items():
        if isinstance(tree, ast.Module):
            lost += [
                (node.name, path, node.lineno)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and _is_marked(node)
                and node.name not in names
            ]
    return lost


def _mentions(path: str, tree: ast.Module, names: set[str]) -> Iterator[tuple[str, _Found]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
            words = (ast.get_docstring(node) or "").partition("\n")[0][:200]
            yield node.name, _Found(0 if _is_marked(node) else 1, path, node.lineno, words)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
            yield node.value, _Found(2, path, node.lineno)


def _is_marked(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "column" for mark in node.decorator_list)


def _is_aside(path: str) -> bool:
    """Tests and clients mention columns, they do not compute them."""
    return any(path.startswith(part) or f"/{part}" in path for part in _TESTS)


def _source(column: RewardColumn, found: _Found | None) -> ColumnSource:
    return ColumnSource(column, found.path, found.line, found.words) if found else ColumnSource(column)
