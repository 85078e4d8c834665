"""The warm interpreter: imports what programs commonly use, stays single-threaded, forks one warden per execution.

Each datagram on its control socket carries one end of a connection; the warden reads the program from it and answers
on it. If this interpreter is lost, its parent, the keeper, forks a new one. Ends when the control socket closes.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from proctor_sandbox import linux, rings, seccomp
from proctor_sandbox.terms import Limits
from proctor_sandbox.warden import supervise

_COMMON = (
    "abc", "array", "ast", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json",
    "keyword", "linecache", "math", "operator", "pprint", "random", "re", "statistics", "string", "struct", "textwrap",
    "threading", "time", "traceback", "types", "typing", "unicodedata", "uuid", "zlib",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """`arguments`: the control socket's descriptor and a JSON object with the options."""
    linux.die_with_parent()
    control = socket.socket(fileno=int(arguments[0]))
    options = json.loads(arguments[1])
    if new_root := options.get("new_root"):
        environment = options["environment"]
        links = rings.links_to(sys.executable, environment) if environment else {}
        own = {environment: os.path.realpath(environment)} if environment else {}
        rings.enclose(new_root, own, options["uid"], links=links)
    linux.set_dumpable(False)  # becoming another program has set it
    sys.path += options["paths"]
    _warm_up()
    control.send(b"R")
    _keep(control, options)


def _warm_up() -> None:
    linux.limit_heap_arenas()
    for name in _COMMON:
        importlib.import_module(name)
    seccomp.program(os.uname().machine)
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, the shared pages


def _keep(control: socket.socket, options: dict[str, Any]) -> None:
    """Fork the interpreter that serves, and fork it again if it was lost. Returns when it ended normally."""
    while True:
        child = os.fork()
        if child == 0:
            linux.die_with_parent()
            _serve(control, options["parallel"], Limits(**options["bounds"]))
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return


def _serve(control: socket.socket, parallel: int, bounds: Limits) -> None:
    """Never returns."""
    poll = select.poll()
    wardens: dict[int, int] = {}
    is_listening = False
    while True:
        if not is_listening and len(wardens) < parallel:
            poll.register(control, select.POLLIN)
        elif is_listening and len(wardens) >= parallel:
            poll.unregister(control)
        is_listening = len(wardens) < parallel
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                os.waitpid(wardens.pop(descriptor), 0)
                os.close(descriptor)
                continue
            message, received, _, _ = socket.recv_fds(control, 16, 1)
            if not message:
                os._exit(0)  # our wardens end with us
            if received:
                warden = os.pidfd_open(child := _fork_warden(control, received[0], bounds))
                wardens[warden] = child
                poll.register(warden, select.POLLIN)


def _fork_warden(control: socket.socket, connection: int, bounds: Limits) -> int:
    child = os.fork()
    if child:
        os.close(connection)
        return child
    try:
        linux.die_with_parent()
        control.close()
        signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):  # the caller is gone
            supervise(socket.socket(fileno=connection), bounds)
    finally:
        os._exit(0)
