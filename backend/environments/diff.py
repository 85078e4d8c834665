"""The difference between two versions of a package, as rows with the line numbers of both sides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

CONTEXT_LINES = 3
MAX_COMPARED_LINES = 3000
"""Longer changed passages are shown as replaced: comparing them line by line takes seconds."""


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One row."""

    kind: Literal["same", "added", "removed", "gap"]
    text: str = ""
    before: int | None = None
    """1-based line number on the older side."""
    after: int | None = None


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file that is not the same on both sides."""

    path: str
    change: Literal["added", "removed", "changed"]
    lines: list[DiffLine] = field(default_factory=list)

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for line in self.lines)


def diff_files(before: Mapping[str, str], after: Mapping[str, str]) -> list[FileDiff]:
    """Every file that differs, in path order."""
    return [
        _diff_file(path, before.get(path), after.get(path))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


def _diff_file(path: str, before: str | None, after: str | None) -> FileDiff:
    lines = list(_diff_lines((before or "").splitlines(), (after or "").splitlines()))
    change: Literal["added", "removed", "changed"] = "changed"
    if before is None:
        change = "added"
    elif after is None:
        change = "removed"
    return FileDiff(path, change, lines)


def _diff_lines(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    position = (0, 0)
    for group in _groups(before, after):
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


_Operation = tuple[str, int, int, int, int]


def _groups(before: list[str], after: list[str]) -> Iterator[list[_Operation]]:
    if before == after:
        return
    if max(len(before), len(after)) <= MAX_COMPARED_LINES:
        yield from SequenceMatcher(None, before, after).get_grouped_opcodes(CONTEXT_LINES)
        return
    start = _shared(before, after)
    end = _shared(before[start:][::-1], after[start:][::-1])
    first = max(0, start - CONTEXT_LINES)
    stop, other_stop = len(before) - end, len(after) - end
    tail = min(end, CONTEXT_LINES)
    yield [
        ("equal", first, start, first, start),
        ("replace", start, stop, start, other_stop),
        ("equal", stop, stop + tail, other_stop, other_stop + tail),
    ]


def _shared(left: list[str], right: list[str]) -> int:
    """How many lines both begin with."""
    return next(
        (n for n, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(len(left), len(right))
    )
