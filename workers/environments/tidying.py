"""The disk limit of virtual environments: the least recently used goes first."""

import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

_JUST_NOW_SECONDS = 900.0
"""One that was wanted so recently may be about to be used."""
_GONE = ".gone"
_OLD_LAYOUT = ("bin", "pyvenv.cfg")
"""Only environments of earlier versions have an interpreter; none of them is used again."""


def tidy(folder: Path, max_bytes: int, in_use: Collection[str]) -> list[str]:
    """Remove whole environments until the rest fits; never one in use. Their names. Takes seconds: not for a loop."""
    for left in folder.glob(f"*{_GONE}"):
        shutil.rmtree(left, ignore_errors=True)
    homes = [path for path in folder.iterdir() if path.is_dir() and not path.suffix] if folder.is_dir() else []
    for home in [home for home in homes if any(os.path.lexists(home / name) for name in _OLD_LAYOUT)]:
        _remove(home)
        homes.remove(home)
    sizes = {home: _size(home) for home in homes}
    wanted = {home: home.stat().st_mtime for home in homes}
    newest, total, removed = time.time() - _JUST_NOW_SECONDS, sum(sizes.values()), []
    for home in sorted(homes, key=lambda home: wanted[home]):
        if total <= max_bytes:
            break
        if home.name not in in_use and wanted[home] < newest:
            _remove(home)
            total -= sizes[home]
            removed.append(home.name)
    return removed


def touch(home: Path) -> None:
    """It is wanted."""
    if home.is_dir():
        os.utime(home)


def _remove(home: Path) -> None:
    """Make it disappear atomically, then delete its files."""
    gone = home.with_name(home.name + _GONE)
    home.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    home.with_suffix(".log").unlink(missing_ok=True)


def _size(home: Path) -> int:
    """Bytes on the disk; what disappears meanwhile has none."""
    total = 0
    for parent, _, names in os.walk(home):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
