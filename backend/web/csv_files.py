"""Tables as CSV files that are safe to open in a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterable, Iterator

from fastapi.responses import Response

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


def csv_response(name: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> Response:
    """Return a small table as a file called `name`.csv."""
    file = f'attachment; filename="{re.sub("[^A-Za-z0-9_.-]+", "-", name)[:80]}.csv"'
    content = b"".join(csv_lines(head, rows))
    return Response(content, media_type="text/csv; charset=utf-8", headers={"Content-Disposition": file})
