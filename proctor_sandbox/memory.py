"""How much memory an execution uses, all of its processes together: RLIMIT_AS bounds only each by itself."""

import os


def own_bytes() -> int:
    """Of this process: what a fork of it starts with."""
    return _private_bytes("self")


def used_bytes(pid: int, baseline: int) -> int:
    """Of a process and all that came from it, without what each of them inherited."""
    found = [pid]
    for known in found:
        found += _children(known)
    return sum(max(0, _private_bytes(str(known)) - baseline) for known in found)


def _private_bytes(process: str) -> int:
    """Anonymous and shared memory, not mapped files."""
    try:
        with open(f"/proc/{process}/status") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _children(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        pass
    return found
