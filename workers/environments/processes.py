"""The process behind a server: its output and its memory."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

KEPT_BYTES = 64 << 10
"""As much as a pipe holds."""


@dataclass(slots=True, eq=False)
class ServerProcess:
    """The process behind a server: a forked process, a container, or a relay to an external one."""

    pid: int = 0
    """In the host's numbering; 0 if it has not started, or is not a process of ours."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    """Its exit code; negative: the signal that ended it."""

    def kill(self) -> None:
        raise NotImplementedError


class LogTail:
    """The read end of a pipe, drained by the running event loop; keeps the last 64 KB."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        """`writer` goes to the server; close our copy once the server has it."""
        os.set_blocking(self._reader, False)
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)
        self._is_open = True

    def _read(self) -> None:
        """Take the available output, then pause: a process that prints more than 6 MB per second has to wait."""
        try:
            data = os.read(self._reader, KEPT_BYTES)
        except BlockingIOError:
            return
        self._kept += data
        del self._kept[:-KEPT_BYTES]
        self._loop.remove_reader(self._reader)
        if data:
            self._loop.call_later(0.01, self._resume)
        else:
            self._is_open = False
            os.close(self._reader)

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._reader, self._read)

    def close(self) -> None:
        """Take the available output and close, even if the other end is still open."""
        if self._is_open:
            self._read()
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._reader)
            os.close(self._reader)

    def last_lines(self, count: int = 30, characters: int = 3000) -> str:
        text = self._kept.decode(errors="replace").replace("\x00", "").strip()
        return "\n".join(text.splitlines()[-count:])[-characters:]


def parent(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
