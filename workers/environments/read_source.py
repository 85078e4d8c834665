"""A program: print the build requirements of a source distribution. Standard library only; nothing of it is run.

python read_source.py ARCHIVE prints a JSON object: `requires`, null if there is no `[build-system]`; or `error`.
"""

import bz2
import gzip
import io
import json
import re
import sys
import tarfile
import tomllib
import zipfile
import zlib
from typing import IO, cast

MAX_UNPACKED_BYTES = 256 << 20
"""The size of the folder that it is built in."""
MAX_MEMBERS = 20_000
_MAX_PYPROJECT_BYTES = 1 << 20
_MAX_REQUIREMENTS = 200
_PYPROJECT = re.compile(r"[^/]+/pyproject\.toml")
_UNREADABLE = (
    *(ValueError, OSError, EOFError, NotImplementedError, RecursionError),  # also of TOML and Unicode
    *(zlib.error, tarfile.TarError, zipfile.BadZipFile),
)


class ArchiveTooLarge(Exception):
    """The archive holds more than may be read."""


class _BoundedStream(io.RawIOBase):
    """A stream that raises ArchiveTooLarge after a number of bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(part)
        if self._left < 0:
            raise ArchiveTooLarge(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MB")
        return part


def main(path: str) -> None:
    answer: dict[str, object]
    try:
        system = tomllib.loads(_read_pyproject(path)).get("build-system")
        answer = {"requires": None}
        if isinstance(system, dict):
            lines = system.get("requires", [])
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise ValueError("build-system.requires is not a list of requirements")
            if len(lines) > _MAX_REQUIREMENTS or any(len(line) > 1000 for line in lines):
                raise ArchiveTooLarge(f"its build requires more than {_MAX_REQUIREMENTS} distributions")
            answer = {"requires": lines}
    except ArchiveTooLarge as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": "reading it takes too much memory"}
    except _UNREADABLE as error:
        answer = {"error": f"it cannot be read: {str(error).replace(path, 'the archive')[:300]}"}
    sys.stdout.write(json.dumps(answer))


def _read_pyproject(path: str) -> str:
    """The text of its pyproject.toml; empty if it has none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            entries = zipped.infolist()
            if len(entries) > MAX_MEMBERS:
                raise ArchiveTooLarge(f"it holds more than {MAX_MEMBERS:,} files")
            if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
                raise ArchiveTooLarge(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MB")
            for entry in entries:
                if _PYPROJECT.fullmatch(entry.filename):
                    with zipped.open(entry) as content:
                        return _text(content)
        return ""
    with open(path, "rb") as file:
        start = file.read(3)
        file.seek(0)
        stream: IO[bytes] = file
        if start[:2] == b"\x1f\x8b":
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file))
        elif start == b"BZh":
            stream = bz2.BZ2File(file)
        with tarfile.open(fileobj=_BoundedStream(stream), mode="r|") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_MEMBERS:
                    raise ArchiveTooLarge(f"it holds more than {MAX_MEMBERS:,} files")
                archive.members.clear()  # type: ignore[attr-defined]  # the stream is read once
                if member.isfile() and _PYPROJECT.fullmatch(member.name):
                    extracted = archive.extractfile(member)
                    assert extracted is not None
                    return _text(extracted)
    return ""


def _text(file: IO[bytes]) -> str:
    data = file.read(_MAX_PYPROJECT_BYTES + 1)
    if len(data) > _MAX_PYPROJECT_BYTES:
        raise ArchiveTooLarge(f"its pyproject.toml is larger than {_MAX_PYPROJECT_BYTES >> 20} MB")
    return data.decode()


if __name__ == "__main__":
    main(sys.argv[1])
