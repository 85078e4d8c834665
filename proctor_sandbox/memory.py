"""Memory of all processes of an execution together: RLIMIT_AS limits each process alone."""

import os
from contextlib import suppress


def used_bytes(pid: int, baseline: int) -> int:
    """Memory of a process and its descendants, without the `baseline` that each of them started with."""
    return sum(max(0, _private_bytes(str(each)) - baseline) for each in descendants(pid))


def private_bytes_of(status: str) -> int:
    """Anonymous and shared memory, not mapped files; `status` is the text of a process in /proc."""
    return bytes_of(status, "RssAnon", "RssShmem")


def bytes_of(status: str, *names: str) -> int:
    """Sum of these values."""
    starts = tuple(f"{name}:" for name in names)
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(starts))


def _private_bytes(process: str) -> int:
    try:
        with open(f"/proc/{process}/status") as file:
            return private_bytes_of(file.read())
    except OSError:
        return 0


def descendants(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for known in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{known}/task"):
                with suppress(OSError), open(f"/proc/{known}/task/{thread}/children") as file:
                    found += [int(child) for child in file.read().split()]
    return found
