"""The rules of connect four and a bounded search. A position is two sets of discs, each an integer with one bit a cell.

A column has seven bits, the lowest cell first; the seventh stays empty, so that lines do not run into the next column.
"""

from functools import lru_cache
from typing import NamedTuple

COLUMNS = 7
ROWS = 6
CELLS = COLUMNS * ROWS
CENTRE_FIRST = (3, 2, 4, 1, 5, 0, 6)
WON = 1000
"""Value of a won position; each disc that was needed makes it one less, so that sooner is better."""
NEARLY = 3
"""Undecided positions that differ by so little count as equal."""

_STEPS = (1, 7, 6, 8)
"""Bits from one cell to the next: upwards, across and along both diagonals."""
_BOTTOM = tuple(1 << (7 * column) for column in range(COLUMNS))
_TOP = tuple(1 << (7 * column + ROWS - 1) for column in range(COLUMNS))


def _lines() -> tuple[int, ...]:
    """The 69 lines of four cells."""
    found = set()
    for column in range(COLUMNS):
        for row in range(ROWS):
            for across, up in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(column + across * n, row + up * n) for n in range(4)]
                if all(0 <= x < COLUMNS and 0 <= y < ROWS for x, y in cells):
                    found.add(sum(1 << (7 * x + y) for x, y in cells))
    return tuple(sorted(found))


LINES = _lines()


class Position(NamedTuple):
    """Discs of the player to move, and of the other."""

    mine: int = 0
    theirs: int = 0

    def drop(self, column: int) -> "Position":
        """The position after a disc in an open column, seen by the other player."""
        taken = self.mine | self.theirs
        cell = (taken + _BOTTOM[column]) & ~taken & _column_mask(column)
        return Position(self.theirs, self.mine | cell)

    def discs(self) -> int:
        return (self.mine | self.theirs).bit_count()


@lru_cache(maxsize=COLUMNS)
def _column_mask(column: int) -> int:
    return ((1 << ROWS) - 1) << (7 * column)


def open_columns(position: Position) -> list[int]:
    """Columns that take another disc, the middle ones first."""
    taken = position.mine | position.theirs
    return [column for column in CENTRE_FIRST if not taken & _TOP[column]]


def has_four(discs: int) -> bool:
    for step in _STEPS:
        pairs = discs & (discs >> step)
        if pairs & (pairs >> (2 * step)):
            return True
    return False


def value(position: Position, depth: int, low: int = -WON, high: int = WON) -> int:
    """Value of the position for the player to move when both look `depth` discs ahead."""
    return _value(*position, _promise(position), depth, low, high)


def _value(mine: int, theirs: int, promise: int, depth: int, low: int, high: int) -> int:
    """The same of bare numbers, which is what takes the time."""
    taken = mine | theirs
    for step in _STEPS:
        pairs = theirs & (theirs >> step)
        if pairs & (pairs >> (2 * step)):
            return taken.bit_count() - WON
    if taken == _FULL:
        return 0
    if depth <= 0:
        return promise
    for bottom, column in _DROPS:
        if cell := (taken + bottom) & ~taken & column:
            worth = -_value(theirs, mine | cell, -promise - _LINES_THROUGH[cell], depth - 1, -high, -low)
            low = max(low, worth)
            if low >= high:
                break
    return low


_DROPS = tuple((_BOTTOM[column], ((1 << ROWS) - 1) << (7 * column)) for column in CENTRE_FIRST)
"""The lowest cell of a column and all its cells, the middle columns first."""
_LINES_THROUGH = {
    cell: sum(bool(line & cell) for line in LINES)
    for cell in (1 << (7 * column + row) for column in range(COLUMNS) for row in range(ROWS))
}
_FULL = sum(_LINES_THROUGH)


def _promise(position: Position) -> int:
    """Cells held, by how many lines go through them."""
    return sum(
        count * (bool(position.mine & cell) - bool(position.theirs & cell)) for cell, count in _LINES_THROUGH.items()
    )


@lru_cache(maxsize=50_000)
def values(position: Position, depth: int) -> dict[int, int]:
    """Value of each open column for the player to move."""
    return {column: -value(position.drop(column), depth - 1) for column in open_columns(position)}


@lru_cache(maxsize=50_000)
def best_column(position: Position, depth: int) -> int:
    """One of the best columns; quicker than the value of each."""
    best, low = -1, -WON - 1
    for column in open_columns(position):
        worth = -value(position.drop(column), depth - 1, -WON, -low)
        if worth > low:
            best, low = column, worth
    return best


def good_columns(position: Position, depth: int) -> list[int]:
    """The best columns; in undecided positions also slightly worse ones."""
    worth = values(position, depth)
    best = max(worth.values())
    margin = 0 if abs(best) >= WON - CELLS else NEARLY
    return [column for column in worth if worth[column] >= best - margin]


def winning_columns(position: Position) -> list[int]:
    """Columns that complete a line of the player to move."""
    return [column for column in open_columns(position) if has_four(position.drop(column).theirs)]


def threatened_columns(position: Position) -> list[int]:
    """Columns in which the other player would complete a line now."""
    return winning_columns(Position(position.theirs, position.mine))


def draw(first: int, second: int) -> str:
    """The board from above: X for the first set of discs, O for the second, numbered columns below."""
    rows = []
    for row in reversed(range(ROWS)):
        bits = [1 << (7 * column + row) for column in range(COLUMNS)]
        rows.append(" ".join("X" if first & bit else "O" if second & bit else "." for bit in bits))
    return "\n".join([*rows, " ".join(str(column + 1) for column in range(COLUMNS))])
