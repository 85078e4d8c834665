"""Tables as CSV files that are safe to open in a spreadsheet."""

import csv
import io
from collections.abc import Iterable, Iterator

_SIGNS = ("=", "+", "-", "@", "\t", "\r")
_BLOCK = 1000
"""Rows that are sent together."""


def csv_lines(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[bytes]:
    """Yield the file in parts. Text that a spreadsheet would read as a formula gets a leading apostrophe: names are
    other people's text.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    for number, row in enumerate(rows, 1):
        writer.writerow(f"'{cell}" if isinstance(cell, str) and cell.startswith(_SIGNS) else cell for cell in row)
        if number % _BLOCK == 0:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()
