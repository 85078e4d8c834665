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
