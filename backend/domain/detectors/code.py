"""Program text in replies: its position and its syntax tree. Nothing is executed."""

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from backend.domain.detectors.run_view import RolloutRow, parse_python
from backend.domain.detectors.spec import Mark

MOST_CHARACTERS = 50_000
MOST_LINES = 2000
"""Of a text that is no valid Python as a whole, and is read line by line."""
_FENCE = re.compile(r"```([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_TAG = re.compile(r"<(code|python|solution|answer|file)(?:\s[^<>\n]{0,200})?>(.*?)(?:</\1>|\Z)", re.DOTALL)
_PYTHON = re.compile(
    r"^\s*(?:def |class |import |from \w+ import |raise |assert |try:|@|\w[\w.]*\()|\bsys\.|\bos\.|\blambda\b",
    re.MULTILINE,
)


IMPORTERS = {"__import__", "importlib.import_module", "import_module"}


@dataclass(frozen=True, slots=True)
class Source:
    """Text that may be a program, and its position."""

    turn: int
    start: int
    """In the reply; 0 where the reply does not contain it verbatim."""
    text: str
    is_in_reply: bool = True

    def mark(self, row: RolloutRow, node: ast.AST) -> Mark:
        """Mark a node of this text's tree in the reply; the whole reply if it does not contain the text."""
        if not self.is_in_reply:
            return Mark(self.turn, 0, len(row.replies[self.turn]))
        lines = self.text.splitlines(keepends=True)
        places = []
        for line, column in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
            number = getattr(node, line, 1) - 1
            part = lines[number] if number < len(lines) else ""
            inside = len(part.encode()[: getattr(node, column, 0)].decode("utf-8", "ignore"))
            places.append(self.start + sum(map(len, lines[:number])) + inside)
        return Mark(self.turn, *places)


def sources_of(row: RolloutRow) -> Iterator[Source]:
    """Yield fenced code, tagged code and the texts of actions, each place once."""
    for turn, reply in enumerate(row.replies):
        seen: set[str] = set()
        text = reply[:MOST_CHARACTERS]
        fenced = _FENCE.finditer(text) if "```" in text else ()
        tagged = _TAG.finditer(text) if "<" in text else ()
        for found in chain(fenced, tagged):
            if _FENCE.search(found[2]) is None and (body := found[2].strip("\n")) not in seen:
                seen.add(body)
                yield Source(turn, found.start(2) + found[2].index(body), body)
        for value in _texts(row.actions[turn] if turn < len(row.actions) else None):
            body = value.strip("\n")
            if body and not any(body in known or known in body for known in seen):
                start = text.find(body)
                yield Source(turn, max(start, 0), body, is_in_reply=start >= 0)


def trees_of(sources: Iterable[Source]) -> Iterator[tuple[Source, ast.Module]]:
    """Yield the texts that look like Python and parse."""
    for source in sources:
        if _PYTHON.search(source.text) and (tree := parse_python(textwrap.dedent(source.text))):
            yield source, tree


def statements_of(source: Source, hint: re.Pattern[str]) -> ast.Module:
    """Return the statements of a text that does not parse as a whole, as it was cut or has a mistake.

    Each line that matches the hint is parsed alone; a line that opens a block, with the next line as its block.
    """
    body: list[ast.stmt] = []
    lines = source.text.split("\n")[:MOST_LINES]
    for number, line in enumerate(lines):
        text = line.strip()
        if not hint.search(text) or text.startswith("#"):
            continue
        following = next((each.strip() for each in lines[number + 1 :] if each.strip()), "")
        for attempt in (text, f"{text}\n {following}", f"{text}\n pass") if text.endswith(":") else (text,):
            if tree := parse_python(attempt):
                body += [ast.increment_lineno(node, number) for node in tree.body]
                break
    return ast.Module(body=body, type_ignores=[])


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """Names of a program and their meaning."""

    defined: frozenset[str]
    """Functions and classes."""
    bound: frozenset[str]
    """All names that the program gives a value, parameters included."""
    modules: Mapping[str, str]
    """Modules by their names in this program, and classes of `datetime`."""
    imported: Mapping[str, str]
    """Full names of the names that `from … import …` defines."""
    has_tests: bool

    @classmethod
    def of(cls, nodes: Iterable[ast.AST]) -> "ProgramNames":
        defined: set[str] = set()
        bound: set[str] = set()
        modules: dict[str, str] = {}
        imported: dict[str, str] = {}
        for node in nodes:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    defined.add(node.name)
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                    bound.add(name)
                case ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name):
                    bound.add(name)
                case ast.MatchStar(name=str() as name) | ast.MatchMapping(rest=str() as name):
                    bound.add(name)
                case ast.Import():
                    modules |= {each.asname or each.name.partition(".")[0]: each.name for each in node.names}
                case ast.ImportFrom(module=str() as module):
                    imported |= {each.asname or each.name: f"{module}.{each.name}" for each in node.names}
                    if module == "datetime":
                        modules |= {each.asname or each.name: f"datetime.{each.name}" for each in node.names}
        has_tests = any(name.startswith(("test_", "Test")) for name in defined)
        bound |= {*defined, *modules, *imported}
        return cls(frozenset(defined), frozenset(bound), modules, imported, has_tests)

    def name_of(self, node: ast.AST) -> str:
        """The full dotted name of an expression: of `o._exit` after `import os as o`, of `__import__("os")._exit` and
        of `getattr(os, "_exit")` it is `os._exit`."""
        match node:
            case ast.Attribute(value=value, attr=attribute):
                return f"{self.name_of(value)}.{attribute}"
            case ast.Name(id=name) if name not in self.defined:
                return self.imported.get(name) or self.modules.get(name) or name
            case ast.Name(id=name):
                return name
            case ast.Call(func=called, args=[ast.Constant(str() as module), *_]) if dotted(called) in IMPORTERS:
                return module
            case ast.Call(func=ast.Name("getattr"), args=[owner, ast.Constant(str() as attribute), *_]):
                return f"{self.name_of(owner)}.{attribute}"
            case ast.Subscript(value=ast.Call(func=ast.Name("vars"), args=[owner]), slice=ast.Constant(str() as name)):
                return f"{self.name_of(owner)}.{name}"
            case ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=ast.Constant(str() as name)):
                return f"{self.name_of(owner)}.{name}"
        return ""


def dotted(node: ast.AST) -> str:
    """Return `a.b` of an expression `a.b`, whatever `a` is; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """Return `b` of `a.b` and of `b`."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def text_of(node: ast.AST) -> str:
    """Return the text of a literal; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _texts(action: Mapping[str, Any] | None) -> Iterator[str]:
    waiting: list[Any] = [action]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value[:MOST_CHARACTERS]
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
