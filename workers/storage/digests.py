"""Hashes of files, as an export's manifest lists them."""

import hashlib
from pathlib import Path


def digest_of(path: Path) -> str:
    """SHA-256; empty for a missing file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
