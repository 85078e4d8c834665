"""Import once what processes share, then fork them: `python -m workers.fork_server DESCRIPTOR MODULE …`.

`backend.supervisor.fork_server` starts it and sends requests through the socket DESCRIPTOR. A forked process belongs to
the supervisor, as if that had started it: its session, streams, title and end are its own. This process has no thread
and no connection, and after its imports it does nothing but fork.
"""

import ctypes
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from backend.core.imports import without_collection
from backend.supervisor.children import begin_child
from backend.supervisor.fork_server import MAX_REQUEST_BYTES, ForkRequest
from workers import begin


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    begin.prepare()
    with without_collection():
        for name in sys.argv[2:]:
            import_module(name)
    sys.argv[:] = serve(control)
    return begin.run()


def serve(control: socket.socket) -> Sequence[str]:
    """Fork a process per request. Returns only in a forked one, with its command; ends when the supervisor does."""
    supervisor = os.getppid()
    while True:
        message, streams, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 2)
        if not message:
            sys.exit()
        request: ForkRequest = json.loads(message)
        if (pid := _fork_orphan()) == 0:
            break
        for stream in streams:
            os.close(stream)
        control.send(str(pid).encode())
    control.close()
    os.setsid()
    begin_child(request["niceness"])
    if os.getppid() != supervisor:  # it ended meanwhile
        os._exit(1)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    _set_title(["proctor", *request["command"]])
    return request["command"]


def _fork_orphan() -> int:
    """Fork a process whose parent has ended, so that the supervisor adopts it. Returns 0 in it, and here its pid."""
    readable, writable = os.pipe()
    if (between := os.fork()) == 0:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid:
            os.write(writable, str(pid).encode())
            os._exit(0)
        os.close(readable)
        os.close(writable)
        while os.getppid() == parent:
            time.sleep(0.0005)
        return 0
    os.close(writable)
    with open(readable, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(between, 0)  # its child has its new parent by now
    return int(answer)


def _set_title(words: Sequence[str]) -> None:
    """Show these words as the command line, in the place of this process's own and no longer than that."""
    place = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47]
    start, end = map(int, place)
    title = "\0".join(words).encode()[: max(end - start - 1, 0)]  # some kernels report no place
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, len(title))


if __name__ == "__main__":
    sys.exit(main())
