"""How much memory a server uses, all of its processes together: RLIMIT_AS bounds only each by itself."""

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def resident_bytes_of_tree(pid: int) -> int:
    """Of a process and its descendants. Pages that they share count in each, so this errs on the safe side."""
    return resident_bytes(pid) + sum(resident_bytes_of_tree(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    found = []
    for thread in _threads(pid):
        try:
            found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
        except OSError:
            continue
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
