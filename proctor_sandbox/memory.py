"""Memory of all processes of an execution together: RLIMIT_AS limits each process alone."""

import os
from contextlib import suppress


def own_bytes() -> int:
    """Memory of this process, with which each fork of it starts."""
    return _private_bytes("self")


def used_bytes(pid: int, baseline: int) -> int:
    """Memory of a process and its descendants, without the `baseline` that each of them inherited."""
    return sum(max(0, _private_bytes(str(each)) - baseline) for each in descendants(pid))


def _private_bytes(process: str) -> int:
    """Anonymous and shared memory, not mapped files."""
    try:
        with open(f"/proc/{process}/status") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def descendants(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for known in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{known}/task"):
                with suppress(OSError), open(f"/proc/{known}/task/{thread}/children") as file:
                    found += [int(child) for child in file.read().split()]
    return found
