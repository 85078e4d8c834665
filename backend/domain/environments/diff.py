"""The difference of two texts, or of two versions of a package, as rows with the line numbers of both sides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

CONTEXT_LINES = 3
MAX_COMPARED_LINES = 3000
"""Longer changed passages are shown as replaced, because comparing them line by line takes seconds."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    kind: Literal["same", "added", "removed", "gap"]
    text: str = ""
    before: int | None = None
    """1-based line number on the older side."""
    after: int | None = None


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file that differs."""

    path: str
    change: Literal["added", "removed", "changed"]
    lines: list[DiffLine] = field(default_factory=list)

    def count(self, kind: Literal["added", "removed"]) -> int:
        return sum(line.kind == kind for line in self.lines)


def diff_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[FileDiff]:
    """Return every file that differs, in path order."""
    diffs = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old != new:
            lines = list(diff_lines((old or "").splitlines(), (new or "").splitlines()))
            diffs.append(FileDiff(path, "added" if old is None else "removed" if new is None else "changed", lines))
    return diffs


def diff_lines(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    """Yield the changed lines with a few around them; `gap` where others are omitted."""
    position = (0, 0)
    for group in _changed_passages(before, after):
        if (group[0][1], group[0][3]) != position:
            yield DiffLine("gap")
        for tag, start, stop, other_start, other_stop in group:
            position = (stop, other_stop)
            if tag == "equal":
                for offset in range(stop - start):
                    yield DiffLine("same", before[start + offset], start + offset + 1, other_start + offset + 1)
                continue
            for number in range(start, stop):
                yield DiffLine("removed", before[number], before=number + 1)
            for number in range(other_start, other_stop):
                yield DiffLine("added", after[number], after=number + 1)
    if position != (len(before), len(after)):
        yield DiffLine("gap")


def _changed_passages(before: list[str], after: list[str]) -> Iterator[list[tuple[str, int, int, int, int]]]:
    """Yield difflib's operations (tag, start, stop, other start, other stop) by passage."""
    if before == after:
        return
    if max(len(before), len(after)) <= MAX_COMPARED_LINES:
        yield from SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT_LINES)
        return
    start = _common_prefix(before, after)
    end = _common_prefix(before[start:][::-1], after[start:][::-1])
    first, tail = max(0, start - CONTEXT_LINES), min(end, CONTEXT_LINES)
    stop, other_stop = len(before) - end, len(after) - end
    yield [
        ("equal", first, start, first, start),
        ("replace", start, stop, start, other_stop),
        ("equal", stop, stop + tail, other_stop, other_stop + tail),
    ]


def _common_prefix(left: list[str], right: list[str]) -> int:
    """Return the number of lines that both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))
