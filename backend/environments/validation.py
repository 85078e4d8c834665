"""Validate a package's files and locate its problems. Code is parsed, never executed."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from backend.domain.environments.fixtures import fixture_problems, is_fixture
from backend.domain.environments.manifest import ActionSpec, Manifest, ManifestInvalid, line_of, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, MAX_FILE_BYTES, PackageInvalid, check_files
from backend.domain.templates import parse_template
from backend.environments.scaffold import with_generated

Kind = Literal["Action", "Observation"]

_WIRE_FIELDS = {"reward", "done", "metadata"}
"""Fields of OpenEnv's base classes, which templates and replies may not name."""


@dataclass(frozen=True, slots=True)
class ModelFields:
    """The fields of all classes of one kind in a package."""

    kind: Kind
    fields: frozenset[str]


def fields_of(trees: Sequence[ast.Module], kind: Kind) -> ModelFields | None:
    """None when no such class can be found, or when one inherits from a class that is not in the package."""
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    bases = {name: [_last_name(base) for base in node.bases] for name, node in classes.items()}
    children: dict[str, list[str]] = {}
    for name, parents in bases.items():
        for parent in parents:
            children.setdefault(parent, []).append(name)
    derived = _reached(children.get(kind, ()), children)
    found: set[str] = set()
    for name in _reached(derived, {name: parents for name, parents in bases.items() if name != kind}):
        if name in classes and (name != kind or kind in derived):
            found.update(_own_fields(classes[name].body))
        elif name not in {kind, "BaseModel", "Generic", "ABC", "object"}:
            return None
    return ModelFields(kind, frozenset(found - _WIRE_FIELDS)) if derived else None


def _reached(start: Iterable[str], edges: Mapping[str, Sequence[str]]) -> set[str]:
    """All that a walk along the edges meets, the start included."""
    seen = set(start)
    waiting = list(seen)
    while waiting:
        for name in edges.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def _own_fields(body: Iterable[ast.stmt]) -> Iterable[str]:
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _last_name(base: ast.expr) -> str:
    """`Action` for `Action`, `types.Action` and `Action[int]`."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


MAX_PARSED_FILE = 150_000
"""Words and signs of a Python file that is parsed: time and memory grow with them."""
MAX_PARSED = 300_000
"""Total size of a package's Python files; the rest is not checked."""
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class FileProblem:
    """One thing that keeps a draft from being published."""

    path: str
    """The file; empty when it is about the package as a whole."""
    line: int
    """1-based."""
    message: str
    key: str = ""
    """In a manifest: the dotted key, e.g. `proctor.rewards.win`."""


@dataclass(frozen=True, slots=True)
class Validation:
    """A package as far as it can be understood without running it."""

    problems: list[FileProblem]
    manifest: Manifest | None
    """None when the manifest itself has problems."""

    @property
    def is_publishable(self) -> bool:
        return self.manifest is not None and not self.problems

    def of(self, path: str) -> list[FileProblem]:
        return [problem for problem in self.problems if problem.path == path]


def validate_package(files: Mapping[str, str], name: str | None = None) -> Validation:
    """List every problem of the files. `name`: the environment's name, which the manifest must repeat."""
    files = with_generated(files)
    try:
        check_files(files)
    except PackageInvalid as error:
        problems = [FileProblem("", 1, str(error))]
    else:
        problems = []
    manifest: Manifest | None = None
    text = files.get(MANIFEST_PATH, "")
    try:
        manifest = read_manifest(text) if MANIFEST_PATH in files else None
    except ManifestInvalid as error:
        problems += [FileProblem(MANIFEST_PATH, found.line, found.message, found.path) for found in error.problems]
    parsed = parse_sources(files)
    problems += [found for found in parsed.values() if isinstance(found, FileProblem)]
    if manifest:
        trees = {path: found for path, found in parsed.items() if isinstance(found, ast.Module)}
        problems += _contradictions(manifest, text, files, trees, name)
        problems += _in_fixtures(files, manifest)
    return Validation(problems, manifest)


def _in_fixtures(files: Mapping[str, str], manifest: Manifest) -> list[FileProblem]:
    """Of transcripts only: a foreign package may keep other files in a folder of that name."""
    transcripts = {path: text for path, text in files.items() if is_fixture(path) and '"replies"' in text}
    return [FileProblem(found.path, found.line, found.message) for found in fixture_problems(transcripts, manifest)]


def parse_python(path: str, text: str) -> ast.Module | FileProblem:
    """The syntax tree, or why there is none."""
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
    """Where the manifest and the rest of the package disagree."""

    def problem(message: str, *key: str) -> FileProblem:
        return FileProblem(MANIFEST_PATH, line_of(text, *key), message, ".".join(key))

    if name is not None and manifest.name != name:
        yield problem(f"says `{manifest.name}`, but this environment is called `{name}`", "name")
    if app_problem := _app_problem(manifest.app, files, trees):
        yield problem(app_problem, "app")
    modules = list(trees.values())
    action, observation = fields_of(modules, "Action"), fields_of(modules, "Observation")
    agent = manifest.proctor.agent
    for key, field in _named_fields(agent.action):
        model = observation if key in {"choices", "tools"} else action
        if lacking := _lacking(model, field):
            yield problem(lacking, "proctor", "agent", "action", key)
    for field in sorted(parse_template(agent.observation).names - {"observation"}):
        if lacking := _lacking(observation, field):
            yield problem(lacking, "proctor", "agent", "observation")


def _named_fields(spec: ActionSpec) -> Iterator[tuple[str, str]]:
    """The manifest's keys that name a field of the action or of the observation."""
    named = {"field": spec.field, "choices": spec.choices}
    if spec.format == "tool":
        is_listed = isinstance(spec.tools, str) and not spec.discover
        named |= {"arguments": spec.arguments, "text": spec.text, "tools": str(spec.tools) if is_listed else None}
    for key, field in named.items():
        if field:
            yield key, field
    if spec.format == "tool":
        yield from (("extra", field) for field in spec.extra)


def _lacking(model: ModelFields | None, field: str) -> str | None:
    """Why a field cannot be meant; None also where the package's models are beyond what can be read."""
    if model is None or field in model.fields:
        return None
    known = ", ".join(f"`{name}`" for name in sorted(model.fields)) or "none"
    return f"the package's {model.kind.lower()} has no field `{field}` (it has {known})"


def _app_problem(app: str, files: Mapping[str, str], trees: Mapping[str, ast.Module]) -> str | None:
    """Some packages name their app from their own folder, some from its parent."""
    module, _, attribute = app.partition(":")
    if not module or not attribute:
        return "is written `module:name`, for example `server.app:app`"
    parts = module.split(".")
    candidates = [f"{'/'.join(tail)}{end}" for tail in (parts, parts[1:]) if tail for end in (".py", "/__init__.py")]
    path = next((path for path in candidates if path in files), None)
    if path is None:
        return f"names `{module}`, but there is no file `{candidates[0]}`"
    if path in trees and attribute not in _names_in(trees[path]):
        return f"names `{attribute}`, which `{path}` does not define"
    return None


def _names_in(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names
