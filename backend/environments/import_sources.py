"""Where a foreign package comes from: a zip, a folder, an address. Repositories are read in `importing_git`."""

import io
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from backend.core.outgoing import CannotConnect, outgoing_policy
from backend.domain.addresses import port_of
from backend.domain.environments.foreign import MAX_NAMES
from backend.domain.environments.packages import PackageInvalid
from backend.domain.zips import BadZip, open_zip, read_member

MAX_UPLOAD_BYTES = 30_000_000
MAX_UNPACKED_BYTES = 80_000_000
MAX_FILE_BYTES = 20_000_000
"""Larger ones are not even looked at."""


def read_zip(data: bytes, name: str = "") -> tuple[dict[str, bytes], str]:
    """The files, and the name of the folder that they lie in. Raises PackageInvalid."""
    if len(data) > MAX_UPLOAD_BYTES:
        raise PackageInvalid(f"the zip has {len(data):,} bytes; at most {MAX_UPLOAD_BYTES:,} are taken")
    files: dict[str, bytes] = {}
    left = MAX_UNPACKED_BYTES
    try:
        with open_zip(io.BytesIO(data), max_files=MAX_NAMES, max_bytes=MAX_UNPACKED_BYTES) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and entry.file_size <= MAX_FILE_BYTES:
                    files[entry.filename] = read_member(archive, entry, min(left, MAX_FILE_BYTES))
                    left -= len(files[entry.filename])
    except BadZip as error:
        raise PackageInvalid(str(error)) from error
    for path in files:
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise PackageInvalid(f"the zip has a path that leads outside: {path[:100]!r}")
    return files, PurePosixPath(name).stem


def read_tree(folder: Path) -> dict[str, bytes]:
    """The files of a folder by path; links are not followed. Raises PackageInvalid."""
    files: dict[str, bytes] = {}
    total = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or ".git" in inside.parts or ".venv" in inside.parts:
            continue
        size = path.stat().st_size
        total += size
        if len(files) >= MAX_NAMES or total > 20 * MAX_UNPACKED_BYTES:
            raise PackageInvalid(f"{folder} holds more than {MAX_NAMES} files: name the package's folder in it")
        if size <= MAX_FILE_BYTES:
            files[inside.as_posix()] = path.read_bytes()
    return files


def checked_url(text: str) -> str:
    """An address that this server may ask: http(s), and not private where that is refused. Raises PackageInvalid."""
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        port = port_of(parts)
    except ValueError as error:
        raise PackageInvalid(f"this is not an address: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PackageInvalid("an address begins with http:// or https://")
    if parts.username or parts.password:
        raise PackageInvalid("leave names and passwords out of the address")
    if any(character.isspace() or ord(character) < 32 for character in url):
        raise PackageInvalid("an address has no spaces")
    try:
        outgoing_policy().check_host(parts.hostname, port)
    except CannotConnect as error:
        raise PackageInvalid(str(error)) from error
    return url
