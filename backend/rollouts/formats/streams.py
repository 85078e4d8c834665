"""Files that leave while they are written: what a writer wrote so far is handed on, and nothing waits on a disk."""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

CHUNK = 256 * 1024
Plain = dict[str, Any]
"""A record as JSON: the fields of `RolloutRecord`."""
Writer = Callable[[IO[bytes]], Iterator[None]]


class Outgoing(io.RawIOBase):
    """Takes bytes and gives them on. It cannot go back, which zips and Parquet do not need."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._waiting = 0
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._waiting += len(part)
        self._position += len(part)
        return len(part)

    def take(self, least: int = 0) -> bytes:
        """What waits, once it is `least` bytes."""
        if self._waiting < max(least, 1):
            return b""
        taken = b"".join(self._parts)
        self._parts, self._waiting = [], 0
        return taken


def outgoing(write: Writer) -> Iterator[bytes]:
    """Run the writer and hand on what it wrote."""
    out = Outgoing()
    for _ in write(cast(IO[bytes], out)):
        if part := out.take(CHUNK):
            yield part
    if part := out.take():
        yield part


@contextmanager
def zip_to(out: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        yield archive


def entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A file in the zip, of any size and of no time: the same rollouts give the same bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return archive.open(info, "w", force_zip64=True)


def write_lines(out: IO[bytes], lines: Iterable[bytes], every: int = 64) -> Iterator[None]:
    """Lines of JSON; yields now and then."""
    for number, line in enumerate(lines, 1):
        out.write(line + b"\n")
        if number % every == 0:
            yield
    yield
