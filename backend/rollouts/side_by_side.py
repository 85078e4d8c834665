"""Two plays of one task beside each other: the words of the replies that only one of them has are marked."""

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from backend.web.transcripts import Entry, Piece

LONGEST = 4000
"""Words of a reply beyond which it is marked whole: matching takes time quadratic in them."""
_WORD = re.compile(r"\s*\S+|\s+$")


def marked_apart(before: Sequence[Entry], after: Sequence[Entry]) -> tuple[list[Entry], list[Entry], int | None]:
    """Both conversations with their differences marked, and the first turn in which the replies differ."""
    replies_before = {entry.turn: entry for entry in before if entry.turn is not None}
    replies_after = {entry.turn: entry for entry in after if entry.turn is not None}
    pieces = {
        turn: _apart(_text(replies_before[turn]), _text(replies_after[turn]))
        for turn in replies_before.keys() & replies_after.keys()
        if _text(replies_before[turn]) != _text(replies_after[turn])
    }
    only_one = replies_before.keys() ^ replies_after.keys()
    return (
        [_with_pieces(entry, pieces, 0) for entry in before],
        [_with_pieces(entry, pieces, 1) for entry in after],
        min([*pieces, *only_one], default=None),
    )


def _with_pieces(entry: Entry, pieces: dict[int, tuple[list[Piece], list[Piece]]], side: int) -> Entry:
    if entry.turn not in pieces or entry.calls:
        return entry
    return replace(entry, pieces=pieces[entry.turn][side])


def _text(entry: Entry) -> str:
    return "".join(piece.text for piece in entry.pieces)


def _apart(before: str, after: str) -> tuple[list[Piece], list[Piece]]:
    words_before, words_after = _WORD.findall(before), _WORD.findall(after)
    if max(len(words_before), len(words_after)) > LONGEST:
        return [Piece(before, is_marked=True)], [Piece(after, is_marked=True)]
    blocks = SequenceMatcher(None, words_before, words_after, autojunk=False).get_matching_blocks()
    return (
        _pieces(words_before, [(block.a, block.size) for block in blocks]),
        _pieces(words_after, [(block.b, block.size) for block in blocks]),
    )


def _pieces(words: Sequence[str], same: Sequence[tuple[int, int]]) -> list[Piece]:
    """What lies between the stretches that both have is marked."""
    pieces: list[Piece] = []
    position = 0
    for start, size in same:
        if start > position:
            pieces.append(Piece("".join(words[position:start]), is_marked=True))
        if size:
            pieces.append(Piece("".join(words[start : start + size])))
        position = start + size
    return pieces or [Piece("")]
