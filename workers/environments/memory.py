"""Measure the memory of all processes of a server together: RLIMIT_AS limits only each one alone."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def used_bytes(pids: list[int]) -> int:
    """Of several processes together, shared pages once (PSS), which only root may ask; else the sum of all theirs."""
    try:
        return sum(_proportional_bytes(pid) for pid in pids)
    except PermissionError:
        return sum(resident_bytes(pid) for pid in pids)


def _proportional_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:")), 0)


def parent(pid: int) -> int:
    """The process that a process came from; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def descendants(pid: int) -> list[int]:
    """A process and all that came from it."""
    if not pid:
        return []
    found = [pid]
    for known in found:
        found += _children(known)
    return found


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


async def wait_until_too_big(pid: int, most: int, end: Callable[[], None]) -> None:
    """Measure a process and its descendants twice a second; end it above `most` bytes. Cancel it afterward."""
    while True:
        await asyncio.sleep(0.5)
        pids = descendants(pid)
        if sum(resident_bytes(each) for each in pids) > most and used_bytes(pids) > most:
            end()
            return
