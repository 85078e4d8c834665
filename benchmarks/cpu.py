"""CPU seconds of this process and of all below it: what work costs, whatever else the machine is doing."""

import os
from collections import defaultdict
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _FIRST_TIME = 1, 11
"""Places in `/proc/<pid>/stat` behind the name: the parent's pid, and user time (then system time, and both of children
that ended)."""


def tree_seconds() -> float:
    """Env host, its servers and Postgres are below a benchmark's process."""
    children: dict[int, list[int]] = defaultdict(list)
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        children[int(fields[_PARENT])].append(pid)
        seconds[pid] = sum(map(int, fields[_FIRST_TIME : _FIRST_TIME + 4])) / _TICKS
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += seconds.get(pid, 0.0)
        waiting += children[pid]
    return total
