"""What servers print: read as it comes, kept only at its end, and never faster than a flood can be thrown away."""

import asyncio
import os

KEPT_BYTES = 64 << 10
READ_BYTES = 64 << 10
PAUSE_SECONDS = 0.01
"""Between two reads: at most 6 MB a second of each process's output is read; a process that prints more has to wait."""


class LogTail:
    """The read end of a pipe, drained by the running event loop; remembers the last 64 KB."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        """`writer` goes to the server; close our copy with `handed_over`."""
        os.set_blocking(self._reader, False)
        self._kept = bytearray()
        self.total_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)
        self._is_open = True

    def handed_over(self) -> None:
        os.close(self.writer)

    def _read(self) -> None:
        try:
            data = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return
        self._loop.remove_reader(self._reader)
        if not data:
            self._finish()
            return
        self._keep(data)
        self._loop.call_later(PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._reader, self._read)

    def _keep(self, data: bytes) -> None:
        self.total_bytes += len(data)
        self._kept += data
        del self._kept[:-KEPT_BYTES]

    def _finish(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._reader)

    def close(self) -> None:
        """Read the available output and close, even if the other end is still open."""
        if not self._is_open:
            return
        self._loop.remove_reader(self._reader)
        try:
            while data := os.read(self._reader, READ_BYTES):
                self._keep(data)
                if len(data) < READ_BYTES:
                    break
        except BlockingIOError:
            pass
        self._finish()

    def last_lines(self, count: int = 30, characters: int = 3000) -> str:
        text = self._kept.decode(errors="replace").replace("\x00", "").strip()
        return "\n".join(text.splitlines()[-count:])[-characters:]
