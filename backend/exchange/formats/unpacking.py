"""Zips that others made, unpacked within bounds: what they say of their sizes is not believed."""

import zipfile
from pathlib import Path

MAX_MEMBERS = 2_000
MAX_BYTES = 4 * 1024**3
MAX_RATIO = 300
"""A zip that unpacks to more than this many times its size, beyond `FREE_BYTES`, is a bomb."""
FREE_BYTES = 64 * 1024**2
_WANTED = (".jsonl", ".json", ".parquet", ".arrow", ".md")
_CHUNK = 1 << 20


class BadFile(ValueError):
    """The file cannot be imported."""


def unpack(file: Path, target: Path) -> list[Path]:
    """The files of interest, each under a name of our own. Raises BadFile."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _unpack(archive, target, limit=max(FREE_BYTES, file.stat().st_size * MAX_RATIO))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise BadFile(f"this is no zip that can be read: {error}") from error


def _unpack(archive: zipfile.ZipFile, target: Path, limit: int) -> list[Path]:
    wanted = [info for info in archive.infolist() if not info.is_dir() and info.filename.lower().endswith(_WANTED)]
    if len(wanted) > MAX_MEMBERS:
        raise BadFile(f"{len(wanted):,} files; at most {MAX_MEMBERS:,} are read")
    left = min(limit, MAX_BYTES)
    unpacked = []
    for number, info in enumerate(wanted):
        path = target / f"{number:04d}" / Path(info.filename).name
        path.parent.mkdir(parents=True)
        left -= _copy(archive, info, path, left)
        unpacked.append(path)
    return unpacked


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, most: int) -> int:
    size = 0
    with archive.open(info) as packed, path.open("wb") as file:
        while part := packed.read(_CHUNK):
            size += len(part)
            if size > most:
                raise BadFile("the zip unpacks to far more than it holds; it is refused")
            file.write(part)
    return size
