"""Program text in replies: its position and its syntax tree. Nothing is executed."""

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.domain.detectors.flags import Mark
from backend.domain.detectors.run_view import RolloutRow

MOST_CHARACTERS = 50_000
_FENCE = re.compile(r"```([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_TAG = re.compile(r"<(code|python|solution|answer)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_PYTHON = re.compile(
    r"^\s*(?:def |class |import |from \w+ import |raise |@|\w[\w.]*\()|\bsys\.|\bos\.|\blambda\b", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Source:
    """Text that may be a program, and its position."""

    turn: int
    start: int
    """In the reply; 0 where the reply does not hold it word for word."""
    text: str
    is_in_reply: bool = True

    def mark(self, row: RolloutRow, node: ast.AST) -> Mark:
        """A node of the tree of this text, as characters of the reply."""
        reply = row.replies[self.turn]
        if not self.is_in_reply:
            return Mark(self.turn, 0, len(reply))
        return Mark(self.turn, self.start + self._place(node, "lineno"), self.start + self._place(node, "end_lineno"))

    def _place(self, node: ast.AST, line: str) -> int:
        column = "col_offset" if line == "lineno" else "end_col_offset"
        lines = self.text.splitlines(keepends=True)
        number = getattr(node, line, 1) - 1
        part = lines[number] if number < len(lines) else ""
        inside = len(part.encode()[: getattr(node, column, 0)].decode("utf-8", "ignore"))
        return sum(map(len, lines[:number])) + inside


def sources_of(row: RolloutRow) -> Iterator[Source]:
    """Fenced code, tagged code and the texts of actions, each place once."""
    for turn, reply in enumerate(row.replies):
        seen: set[str] = set()
        text = reply[:MOST_CHARACTERS]
        for found in _blocks(text):
            if _FENCE.search(found[2]) is None and (body := found[2].strip("\n")) not in seen:
                seen.add(body)
                yield Source(turn, found.start(2) + found[2].index(body), body)
        action = row.actions[turn] if turn < len(row.actions) else None
        for value in _texts(action):
            body = value.strip("\n")
            if body and not any(body in known or known in body for known in seen):
                start = text.find(body)
                yield Source(turn, max(start, 0), body, is_in_reply=start >= 0)


def _blocks(text: str) -> Iterator[re.Match[str]]:
    if "```" in text:
        yield from _FENCE.finditer(text)
    if "<" in text:
        yield from _TAG.finditer(text)


def trees_of(sources: Iterable[Source]) -> Iterator[tuple[Source, ast.Module]]:
    """Those texts that are Python and look like it."""
    for source in sources:
        if _PYTHON.search(source.text) and (tree := parsed(source.text)):
            yield source, tree


def parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are not Python's
            return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _texts(action: Mapping[str, Any] | None) -> Iterator[str]:
    """All texts of an action, nested ones too."""
    waiting: list[Any] = [action]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value[:MOST_CHARACTERS]
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
