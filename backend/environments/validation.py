"""Validate a package, and locate its problems and the code of its reward columns. Code is parsed, never executed."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from backend.domain.environments.fixtures import is_fixture, read_fixtures
from backend.domain.environments.manifest import (
    PLATFORM_COLUMNS,
    FileProblem,
    Manifest,
    ManifestInvalid,
    RewardColumn,
    line_of,
    read_manifest,
)
from backend.domain.environments.packages import MANIFEST_PATH, MAX_FILE_BYTES, PackageInvalid, check_files
from backend.domain.templates import parse_template
from backend.environments.scaffold import with_generated

MAX_PARSED_FILE = 150_000
"""Maximum words and signs of a Python file that is parsed: time and memory grow with them."""
MAX_PARSED = 300_000
"""Maximum words and signs of a package's Python files; the rest is not checked."""
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")
_WIRE_FIELDS = {"reward", "done", "metadata"}
"""Fields of OpenEnv's base classes, which templates and replies cannot name."""
_NO_SOURCES = ("test_", "tests/", "client.py", "inference.py", "inference_words.py")
"""Files that mention reward columns but do not compute them."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Everything that is known of a package without running it."""

    problems: list[FileProblem]
    manifest: Manifest | None
    """None if the manifest has problems."""

    @property
    def is_publishable(self) -> bool:
        return self.manifest is not None and not self.problems


def find_manifest(files: Mapping[str, str]) -> Manifest | None:
    """Return the manifest, read from its file alone; None if there is none or it has problems."""
    try:
        return read_manifest(with_generated(files)[MANIFEST_PATH])
    except (KeyError, ManifestInvalid):
        return None


def validate_package(files: Mapping[str, str], name: str | None = None) -> Validation:
    """List every problem of the files. `name`: the environment's name, which the manifest must repeat."""
    files = with_generated(files)
    problems: list[FileProblem] = []
    try:
        check_files(files)
    except PackageInvalid as error:
        problems.append(FileProblem("", 1, str(error)))
    manifest: Manifest | None = None
    text = files.get(MANIFEST_PATH, "")
    try:
        manifest = read_manifest(text) if MANIFEST_PATH in files else None
    except ManifestInvalid as error:
        problems += error.problems
    parsed = parse_sources(files)
    problems += [found for found in parsed.values() if isinstance(found, FileProblem)]
    if manifest:
        trees = {path: found for path, found in parsed.items() if isinstance(found, ast.Module)}
        problems += _contradictions(manifest, text, files, trees, name)
        # a foreign package may keep other files in a folder of that name
        transcripts = {path: text for path, text in files.items() if is_fixture(path) and '"replies"' in text}
        problems += read_fixtures(transcripts, manifest)[1]
    return Validation(problems, manifest)


def parse_python(path: str, text: str) -> ast.Module | FileProblem:
    """Return the syntax tree, or the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, filename=path)
    except SyntaxError as error:
        return FileProblem(path, min(error.lineno or 1, text.count("\n") + 1), f"not Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return FileProblem(path, 1, f"not Python: {str(error) or 'nested too deeply'}")


def parse_sources(files: Mapping[str, str]) -> dict[str, ast.Module | FileProblem]:
    """Parse the Python files, by path, within the limits. Files that are too large to store are not parsed."""
    parsed: dict[str, ast.Module | FileProblem] = {}
    left = MAX_PARSED
    for path in sorted(path for path in files if path.endswith(".py")):
        if left <= 0 or len(files[path]) > MAX_FILE_BYTES:
            continue
        size = sum(1 for _ in _WORD_OR_SIGN.finditer(files[path]))
        left -= min(size, MAX_PARSED_FILE)
        if size > MAX_PARSED_FILE:
            message = (
                f"has {size:,} words and signs; a Python file has at most {MAX_PARSED_FILE:,}: move data to a data file"
            )
            parsed[path] = FileProblem(path, 1, message)
        else:
            parsed[path] = parse_python(path, files[path])
    return parsed


def _contradictions(
    manifest: Manifest, text: str, files: Mapping[str, str], trees: Mapping[str, ast.Module], name: str | None
) -> Iterator[FileProblem]:
    """Yield contradictions between the manifest and the rest of the package."""

    def problem(message: str, *key: str) -> FileProblem:
        return FileProblem(MANIFEST_PATH, line_of(text, *key), message, ".".join(key))

    if name is not None and manifest.name != name:
        yield problem(f"says `{manifest.name}`, but this environment is called `{name}`", "name")
    if app_problem := _app_problem(manifest.app, files, trees):
        yield problem(app_problem, "app")
    agent, spec = manifest.proctor.agent, manifest.proctor.agent.action
    classes = {node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    fields: dict[str, frozenset[str] | None] = {kind: fields_of(classes, kind) for kind in ("Action", "Observation")}
    named: list[tuple[str, str, str | None]] = [
        ("Action", "field", spec.field),
        ("Observation", "choices", spec.choices),
    ]
    if spec.format == "tool":
        listing = spec.tools if isinstance(spec.tools, str) and not spec.discover else None
        named += [("Action", "arguments", spec.arguments), ("Action", "text", spec.text)]
        named += [("Observation", "tools", listing), *(("Action", "extra", field) for field in spec.extra)]
    places = [(kind, field, ("action", key)) for kind, key, field in named if field]
    templated = sorted(parse_template(agent.observation).names - {"observation"})
    for kind, field, key in [*places, *(("Observation", field, ("observation",)) for field in templated)]:
        declared = fields[kind]
        if declared is not None and field not in declared:
            known = ", ".join(f"`{each}`" for each in sorted(declared)) or "none"
            message = f"the package's {kind.lower()} has no field `{field}` (it has {known})"
            yield problem(message, "proctor", "agent", *key)


def fields_of(classes: Mapping[str, ast.ClassDef], kind: str) -> frozenset[str] | None:
    """Return the fields of all classes of this kind in a package.

    None if there is no such class, or if one inherits from a class outside the package.
    """
    bases: dict[str, list[str]] = {}
    children: dict[str, list[str]] = {}
    for name, node in classes.items():
        for base in node.bases:  # `Action`, `types.Action` or `Action[int]`
            base = base.value if isinstance(base, ast.Subscript) else base
            parent = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            bases.setdefault(name, []).append(parent)
            children.setdefault(parent, []).append(name)
    derived = _reachable(children.get(kind, ()), children)
    fields: set[str] = set()
    for name in _reachable(derived, {name: parents for name, parents in bases.items() if name != kind}):
        if name in classes and (name != kind or kind in derived):
            annotated = [node.target for node in classes[name].body if isinstance(node, ast.AnnAssign)]
            fields.update(target.id for target in annotated if isinstance(target, ast.Name))
        elif name not in {kind, "BaseModel", "Generic", "ABC", "object"}:
            return None
    return frozenset(fields - _WIRE_FIELDS) if derived else None


def _reachable(start: Iterable[str], edges: Mapping[str, list[str]]) -> set[str]:
    """Return everything that a walk along the edges visits, including the start."""
    seen = set(start)
    waiting = list(seen)
    while waiting:
        for name in edges.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def _app_problem(app: str, files: Mapping[str, str], trees: Mapping[str, ast.Module]) -> str | None:
    """Check that the app exists. Packages name its module from their own folder or from its parent."""
    module, _, attribute = app.partition(":")
    if not module or not attribute:
        return "is written `module:name`, for example `server.app:app`"
    parts = module.split(".")
    candidates = [f"{'/'.join(tail)}{end}" for tail in (parts, parts[1:]) if tail for end in (".py", "/__init__.py")]
    path = next((path for path in candidates if path in files), None)
    if path is None:
        return f"names `{module}`, but there is no file `{candidates[0]}`"
    if path not in trees:
        return None
    for node in ast.walk(trees[path]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.alias):
            name = node.asname or node.name
        else:
            continue
        if name == attribute:
            return None
    return f"names `{attribute}`, which `{path}` does not define"


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """One column of the manifest and the code that computes it."""

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


def column_sources(columns: list[RewardColumn], files: Mapping[str, str]) -> list[ColumnSource]:
    """Locate the code of each column, in the manifest's order.

    A method marked with `@column` counts most, then a function of the column's name, then the name as a text.
    """
    by_name = {column.name: column for column in columns}
    found: dict[str, tuple[int, ColumnSource]] = {}
    sources = {
        path: text
        for path, text in files.items()
        if not any(path.startswith(part) or f"/{part}" in path for part in _NO_SOURCES)
    }
    for path, tree in parse_sources(sources).items():
        for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in by_name:
                name, rank = node.name, 0 if _is_marked(node) else 1
                words = (ast.get_docstring(node) or "").partition("\n")[0][:200]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in by_name:
                name, rank, words = node.value, 2, ""
            else:
                continue
            if name not in found or rank < found[name][0]:
                found[name] = rank, ColumnSource(by_name[name], path, node.lineno, words)
    return [found[column.name][1] if column.name in found else ColumnSource(column) for column in columns]


def functions_without_column(columns: list[RewardColumn], files: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """List methods that are marked as columns but have no weight in the manifest: (name, path, line)."""
    names = {column.name for column in columns}
    lost = []
    for path, tree in parse_sources(files).items():
        for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_marked(node) and node.name not in names:
                lost.append((node.name, path, node.lineno))
    return lost


def _is_marked(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id == "column" for mark in node.decorator_list)
