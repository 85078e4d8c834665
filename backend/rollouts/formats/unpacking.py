"""Zips that others made, unpacked within bounds: what they say of their sizes is not believed."""

from pathlib import Path

from backend.domain.zips import BadZip, copy_member, open_zip

MAX_MEMBERS = 2_000
MAX_BYTES = 4 * 1024**3
MAX_RATIO = 300
"""A zip that unpacks to more than this many times its size, beyond `FREE_BYTES`, is a bomb."""
FREE_BYTES = 64 * 1024**2
_WANTED = (".jsonl", ".json", ".parquet", ".arrow", ".md")


class BadFile(ValueError):
    """The file cannot be imported."""


class TooMuch(BadFile):
    """The zip unpacks to more than was asked for."""


def unpack(file: Path, target: Path, most: int = MAX_BYTES) -> list[Path]:
    """The files of interest, each under a name of our own. Raises BadFile, TooMuch beyond `most` bytes."""
    limit = max(FREE_BYTES, file.stat().st_size * MAX_RATIO)
    try:
        with file.open("rb") as opened, open_zip(opened, max_files=MAX_MEMBERS, max_bytes=MAX_BYTES) as archive:
            wanted = [
                info for info in archive.infolist() if not info.is_dir() and info.filename.lower().endswith(_WANTED)
            ]
            if sum(info.file_size for info in wanted) > most:
                raise TooMuch("the zip unpacks to more than is read here")
            left = min(limit, most)
            unpacked = []
            for number, info in enumerate(wanted):
                path = target / f"{number:04d}" / Path(info.filename).name[-100:]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as out:
                    left -= copy_member(archive, info, out, left)
                unpacked.append(path)
            return unpacked
    except BadZip as error:
        raise BadFile(str(error)) from error
