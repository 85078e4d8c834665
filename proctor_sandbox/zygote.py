"""The warm interpreter: imports what programs commonly use, stays single-threaded, forks wardens and programs.

Wardens take requests from the control socket, each of which is one end of a connection, and never fork. Programs are
forked here ahead of need: each waits in its own namespaces until its warden sends it a request. As this interpreter
reads no request and no output, a program inherits nothing of another execution.

If this interpreter is lost, its parent, the keeper, forks a new one. Ends when the control socket closes.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from proctor_sandbox import linux, program, rings, seccomp
from proctor_sandbox.terms import Limits
from proctor_sandbox.warden import Warden

_COMMON = (
    "abc", "array", "ast", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json",
    "keyword", "linecache", "math", "operator", "pprint", "random", "re", "statistics", "string", "struct", "textwrap",
    "threading", "time", "traceback", "types", "typing", "unicodedata", "uuid", "zlib",
)  # fmt: skip


def main(arguments: list[str], fork_hooks: list[dict[str, Callable[[], object]]]) -> None:
    """`arguments`: the control socket's descriptor and a JSON object with the options.

    `fork_hooks`: arguments of `os.register_at_fork` that take effect for the forks of programs.
    """
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
    program.FORK_HOOKS += fork_hooks
    control.send(b"R")
    _keep(control, options)


def _warm_up() -> None:
    linux.limit_heap_arenas()
    linux.thread_id_address()  # without it no program can be forked
    for name in _COMMON:
        importlib.import_module(name)
    os.environ.clear()  # noqa: TID251
    os.environ.update(program.VARIABLES)  # noqa: TID251
    seccomp.prepare()
    program.rehearse()
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, the shared pages


def _keep(control: socket.socket, options: dict[str, Any]) -> None:
    """Fork the interpreter that serves, and fork it again if it was lost. Returns when it ended normally."""
    while True:
        child = os.fork()
        if child == 0:
            linux.die_with_parent()
            _WardenPool(control, options["parallel"], Limits(**options["bounds"])).serve()
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return


@dataclass(eq=False, slots=True)
class _Warden:
    process: int
    channel: socket.socket
    has_ordered: bool = False
    is_busy: bool = False


class _WardenPool:
    """Up to `parallel` wardens, started as needed, and the programs of each: one that runs and one that waits."""

    def __init__(self, control: socket.socket, parallel: int, bounds: Limits) -> None:
        self._control, self._parallel, self._bounds = control, parallel, bounds
        self._wardens: dict[int, _Warden] = {}
        """By descriptor of their channel."""
        self._programs: dict[int, tuple[int, _Warden]] = {}
        """Process ids and owners, by pidfd."""
        self._poll = select.poll()

    def serve(self) -> NoReturn:
        self._poll.register(self._control, 0)  # only its end: the wardens read it
        while True:
            if len(self._wardens) < self._parallel and all(each.is_busy for each in self._wardens.values()):
                self._start_warden()
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    os._exit(0)  # all wardens and programs end with us
                elif descriptor in self._wardens:
                    self._handle_order(self._wardens[descriptor])
                elif descriptor in self._programs:
                    self._report_end(descriptor)

    def _start_warden(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = os.fork()
        if process == 0:
            try:
                linux.die_with_parent()
                kept = sorted((self._control.fileno(), theirs.fileno()))
                os.closerange(3, kept[0])
                os.closerange(kept[0] + 1, kept[1])
                os.closerange(kept[1] + 1, 4096)
                seccomp.install(linux.libc)
                Warden(self._control, theirs, self._bounds).serve()
            finally:
                os._exit(1)
        theirs.close()
        ours.setblocking(False)
        self._wardens[ours.fileno()] = _Warden(process, ours)
        self._poll.register(ours, select.POLLIN)

    def _handle_order(self, warden: _Warden) -> None:
        """Fork the next program of a warden, which orders one at its start and whenever it has used one."""
        try:
            message = warden.channel.recv(16)
        except BlockingIOError:  # the event was of a channel that had this number before
            return
        except OSError:  # it ended before it read our last message
            message = b""
        if not message:
            self._remove(warden)
            return
        warden.is_busy, warden.has_ordered = warden.has_ordered, True
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.suppress(OSError):  # the warden is gone: its channel's end will follow
            uid, gid = os.getuid(), os.getgid()
            try:
                process = linux.fork_into(linux.NEW_USER | linux.NEW_PIDS)
            except OSError as error:
                warden.channel.send(f"failed {error}".encode())
                return
            if process == 0:
                try:
                    program.become_program(theirs, uid, gid)
                finally:
                    os._exit(1)
            handle = os.pidfd_open(process)
            self._programs[handle] = process, warden
            self._poll.register(handle, select.POLLIN)
            socket.send_fds(warden.channel, [f"program {process}".encode()], [ours.fileno(), handle])

    def _report_end(self, handle: int) -> None:
        process, warden = self._programs[handle]
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            self._forget(handle)
            warden.is_busy = False
            with contextlib.suppress(OSError):
                warden.channel.send(f"ended {process} {status} {usage.ru_utime + usage.ru_stime}".encode())

    def _remove(self, warden: _Warden) -> None:
        """After the end of a warden: end its programs too."""
        for handle, (process, owner) in [*self._programs.items()]:
            if owner is warden:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.waitpid(process, 0)
                self._forget(handle)
        os.kill(warden.process, signal.SIGKILL)
        os.waitpid(warden.process, 0)
        self._poll.unregister(warden.channel)
        del self._wardens[warden.channel.fileno()]
        warden.channel.close()

    def _forget(self, handle: int) -> None:
        self._poll.unregister(handle)
        del self._programs[handle]
        os.close(handle)
