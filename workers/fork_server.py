"""Import once what processes share, then fork them: `python -m workers.fork_server DESCRIPTOR OPTIONS`.

`backend.supervisor.fork_server` starts it and sends requests through the socket DESCRIPTOR. A forked process belongs to
the supervisor, as if that had started it: its session, streams, title and end are its own. The supervisor is that of
`proctor up`, or a process of a worker that runs a job. This process has no thread and no connection, uses no GPU, and
does nothing but import and fork.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from backend.core.embedded import die_with_parent
from backend.core.imports import without_collection
from backend.supervisor.children import begin_child
from backend.supervisor.fork_server import MAX_REQUEST_BYTES, ForkOptions, ForkRequest
from workers import begin


def main() -> NoReturn:
    control, options = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    begin.prepare()
    _import(options["modules"])
    while True:
        request = serve(control, options)
        if not request["has_children"] or (server := _leave_server(options)) is None:
            break
        control = server
    sys.argv[:] = request["command"]
    end(begin.run())


def end(status: int) -> NoReturn:
    """End as the interpreter does, but leave the memory to the system: freeing each object would first copy it."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed
            stream.flush()
    os._exit(status & 0xFF)


def serve(control: socket.socket, options: ForkOptions) -> ForkRequest:
    """Fork a process per request. Returns only in a forked one, with its request; ends when the supervisor does."""
    supervisor = os.getppid()
    control.settimeout(options["idle_seconds"])
    while True:
        try:
            message, streams, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 4)
        except TimeoutError:
            sys.exit()
        if not message:
            sys.exit()
        request: ForkRequest = json.loads(message)
        if options["imports_more"]:
            _import(request["command"][:1])
        if (pid := _fork_orphan()) == 0:
            break
        for stream in streams:
            os.close(stream)
        control.send(str(pid).encode())
    control.close()
    os.setsid()
    begin_child(request["niceness"], signal.Signals(options["death_signal"]))
    *streams, begins = streams
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for name, value in request["variables"].items():
        if value is None:
            os.environ.pop(name, None)  # noqa: TID251 - the process's own, read after this
        else:
            os.environ[name] = value  # noqa: TID251
    if "PYTHONFAULTHANDLER" not in os.environ:  # noqa: TID251
        faulthandler.disable()  # the server's
    if numbers := sys.modules.get("numpy.random"):
        numbers.seed()  # Python seeds its own
    _set_title([*options["title"], *request["command"]])
    with contextlib.suppress(OSError), socket.socket(fileno=begins) as supervised:
        supervised.send(b"1" if _can_use_gpu() else b"0")
        if supervised.recv(1) and os.getppid() == supervisor:
            return request
    os._exit(1)  # the supervisor ended or was interrupted meanwhile, or must start the process in another way


def _leave_server(options: ForkOptions) -> socket.socket | None:
    """Fork a server for this process's own children: returns its socket there, and None here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor = os.getpid()
    if pid := os.fork():
        theirs.close()
        import_module("workers.tasks.children").fork_server.inherit(pid, ours)
        return None
    ours.close()
    die_with_parent(signal.SIGTERM)
    if os.getppid() != supervisor:
        os._exit(1)
    _set_title([*options["title"], "workers.fork_server"])
    return theirs


def _import(modules: Sequence[str]) -> None:
    """Import modules, and end if a process that is forked after that could not work."""
    with without_collection():
        for name in modules:
            import_module(name)
    if threading.active_count() > 1:
        sys.exit(f"{', '.join(modules)}: an import started {threading.enumerate()[1:]}")


def _can_use_gpu() -> bool:
    """In a forked process: return whether torch could use a GPU, if there is one."""
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda._is_in_bad_fork()


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
    main()
