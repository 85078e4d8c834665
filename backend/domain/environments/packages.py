"""An environment package as data: its files by path, their limits and their hash.

The sandbox imports this module too, with the standard library and `zips` only.
"""

import base64
import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from backend.domain.zips import BadZip, open_zip, read_member

MANIFEST_PATH = "openenv.yaml"
CERTIFICATE_PATH = "proctor-certificate.json"
BADGE_PATH = "proctor-certificate.svg"
"""Files that an export adds for a checked version."""
MAX_FILES = 200
MAX_FILE_BYTES = 1_000_000
MAX_PACKAGE_BYTES = 5_000_000
BINARY_SUFFIX = ".base64"
"""Suffix of a small binary file that is stored as text and decoded when the package runs."""

_MAX_TOML = 100_000
"""Maximum characters of a `pyproject.toml`."""
_MAX_DOTS = 500
"""Maximum dots in a line of TOML, because parsing a dotted key takes quadratic time."""
_PART = re.compile(r"[A-Za-z0-9_.\-]{1,100}")


class PackageInvalid(ValueError):
    """The package cannot be stored."""


def is_plain_path(path: str) -> bool:
    """Return whether the path is relative, plain and inside the package."""
    parts = path.split("/")
    return len(parts) <= 8 and all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)


def check_files(files: Mapping[str, str]) -> None:
    """Raise PackageInvalid if the files cannot be a package."""
    if MANIFEST_PATH not in files:
        raise PackageInvalid(f"`{MANIFEST_PATH}` is missing")
    if len(files) > MAX_FILES:
        raise PackageInvalid(f"{len(files)} files; a package has at most {MAX_FILES}")
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents}
    total = 0
    for path, text in files.items():
        if not is_plain_path(path):
            raise PackageInvalid(f"{path!r} is not a plain relative path (letters, digits, `_`, `-`, `.` and `/`)")
        if path in folders:
            raise PackageInvalid(f"{path} is both a file and a folder")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise PackageInvalid(f"{path} is not text: {error.reason}") from error
        if size > MAX_FILE_BYTES:
            raise PackageInvalid(f"{path} has {size:,} bytes; a file has at most {MAX_FILE_BYTES:,}")
        if "\x00" in text:
            raise PackageInvalid(f"{path} is not text")
        total += size
    if total > MAX_PACKAGE_BYTES:
        raise PackageInvalid(f"{total:,} bytes; a package has at most {MAX_PACKAGE_BYTES:,}")


def read_toml(text: str) -> dict[str, Any]:
    """Parse a `pyproject.toml` in bounded time. Raises PackageInvalid."""
    if len(text) > _MAX_TOML:
        raise PackageInvalid(f"pyproject.toml has {len(text):,} characters; at most {_MAX_TOML:,} are read")
    if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
        raise PackageInvalid(f"pyproject.toml has a line with more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackageInvalid(f"pyproject.toml cannot be read: {str(error)[:300]}") from error


def content_hash(files: Mapping[str, str]) -> str:
    """Return SHA-256 over paths and contents in path order, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode(), files[path].encode()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


def pack(files: Mapping[str, str], *, as_on_disk: bool = False) -> bytes:
    """Zip the files reproducibly. `as_on_disk`: decode binary files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            name, content = file_as_bytes(path, files[path]) if as_on_disk else (path, files[path].encode())
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def unpack(data: bytes) -> dict[str, str]:
    """Return the files of a zip, checked before they are read. Raises PackageInvalid."""
    files: dict[str, str] = {}
    left = MAX_PACKAGE_BYTES
    try:
        with open_zip(io.BytesIO(data), max_files=MAX_FILES, max_bytes=MAX_PACKAGE_BYTES) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    content = read_member(archive, entry, left)
                    left -= len(content)
                    files[entry.filename] = content.decode()
    except (BadZip, UnicodeDecodeError) as error:
        raise PackageInvalid(f"not a zip of text files: {error}") from error
    check_files(files)
    return files


def binary_as_text(path: str, data: bytes) -> tuple[str, str]:
    """Encode a binary file; return its name and text in a package."""
    return path + BINARY_SUFFIX, base64.encodebytes(data).decode()


def file_as_bytes(path: str, text: str) -> tuple[str, bytes]:
    """Return the name and content of a package's file on disk: the inverse of `binary_as_text`."""
    if path.endswith(BINARY_SUFFIX):
        try:
            return path.removesuffix(BINARY_SUFFIX), base64.b64decode("".join(text.split()), validate=True)
        except ValueError:  # also of text that is not ASCII
            pass  # a text file with this suffix
    return path, text.encode()
