"""The warm interpreter: imports `openenv` once, stays single-threaded, forks one process per environment server.

It runs inside the outer ring and imports from the shared runtime only, which we installed. Whatever belongs to a
package, including the start-up files of its environment, is seen by the forked process alone, inside both rings.

Speaks JSON datagrams over an inherited socket: a request carries the listening socket, the package and the log as
descriptors; the answers are `ready`, `started` and `exited`. Ends, with all its servers, when the socket closes.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import site
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from proctor_sandbox import client, linux
from workers.environments.inside import executions, jail
from workers.environments.inside.absent import without
from workers.environments.inside.server import serve, write_package

_WARM_MODULES = (
    "fastapi",
    "openenv.core.env_server",
    "pydantic.v1",  # every FastAPI route looks at it
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto",
)
_STANDARD_MODULES = (
    *("asyncio", "concurrent.futures.thread", "dataclasses", "decimal", "email.message", "enum", "http.client"),
    *("http.cookies", "importlib.metadata", "inspect", "ipaddress", "json", "logging.config", "mimetypes", "pathlib"),
    *("random", "socket", "ssl", "tempfile", "typing", "urllib.request", "uuid", "zipfile"),
)
"""For standalone environments, whose servers import everything else themselves."""
_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
_IMPORTLIB = os.path.dirname(importlib.__file__)
_MAX_REQUEST_BYTES = 64 << 10
FAILED_TO_ENCLOSE = 70


def main(arguments: list[str]) -> None:
    """`arguments`: the control socket's descriptor and a JSON object with what the host decided."""
    linux.die_with_parent()
    linux.set_dumpable(False)  # becoming another program has set it
    control = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(control.fileno(), False)
    options = json.loads(arguments[1])
    for known in (sys.argv, sys.orig_argv, arguments):
        known[:] = ["python"]
    sources = executions.read_sources()
    _warm_up(options["runtime"], is_jailed=options["jail"])
    Zygote(control, options, sources).run()


def _warm_up(runtime: str, *, is_jailed: bool) -> None:
    """Import what every server needs. `runtime`: the shared runtime's site-packages; empty: import nothing of it."""
    linux.limit_heap_arenas()
    if is_jailed:
        sys.prefix = sys.exec_prefix = jail.PYTHON_FOLDER
        site.PREFIXES[:] = [jail.PYTHON_FOLDER]
    site.ENABLE_USER_SITE = False
    site.setquit()
    site.sethelper()
    for name in _STANDARD_MODULES:
        importlib.import_module(name)
    if runtime:
        site.addsitedir(runtime)
        import_warm_modules()
    if threads := _thread_count() - 1:
        raise RuntimeError(f"{threads} threads run after the imports; a fork would not be safe")
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, the shared pages


def import_warm_modules() -> None:
    with without("gradio"):
        for name in _WARM_MODULES:
            with contextlib.suppress(ModuleNotFoundError):  # an old openenv has other modules
                importlib.import_module(name)


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


class Zygote:
    def __init__(self, control: socket.socket, options: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        self._control, self._sources = control, sources
        self._is_jailed, self._has_network = options["jail"], options["network"]
        self._places, self._runtime = list(options["places"]), options["runtime"]
        self._children: dict[int, str] = {}
        self._poll = select.poll()

    def run(self) -> None:
        self._poll.register(self._control, select.POLLIN)
        signal.set_wakeup_fd(self._child_signal(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._tell(event="ready")
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    self._take_request()
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(descriptor, 4096)
            self._reap()

    def _child_signal(self) -> int:
        """A pipe that becomes readable when a child ends."""
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        self._poll.register(readable, select.POLLIN)
        return writable

    def _tell(self, **message: Any) -> None:
        self._control.send(json.dumps(message).encode())

    def _take_request(self) -> None:
        data, descriptors = _receive(self._control)
        if not data:
            self._end()
        request = json.loads(data)
        try:
            child = os.fork()
        except OSError as error:
            os.write(descriptors[2], f"the sandbox could not be made: {error}\n".encode())
            self._tell(event="exited", id=request["id"], code=FAILED_TO_ENCLOSE)
            child = -1
        if child == 0:
            self._become_server(request, descriptors)
        if child > 0:
            self._children[child] = request["id"]
        for descriptor in descriptors:
            os.close(descriptor)

    def _end(self) -> None:
        """The host is gone or wants us gone."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(0)

    def _reap(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            if name := self._children.pop(child, None):
                self._tell(event="exited", id=name, code=os.waitstatus_to_exitcode(status))

    def _become_server(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """In the child; never returns."""
        code = FAILED_TO_ENCLOSE
        try:
            listener, package, log = descriptors
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _redirect_output(log)
            programs = self._start_sibling(request)
            folder = self._enclose(request, package)
            self._tell(event="started", id=request["id"])
            kept = os.dup(listener)
            self._control.close()
            _close_all_but({kept, programs} if programs is not None else {kept})
            if programs is not None:
                client.attach(socket.socket(fileno=programs))
            elif self._is_jailed:
                client.refuse("this environment may not run programs: its manifest has no `resources: {execute: true}`")
            code = 1
            self._see_environment()
            own = self._places[0] if self._has_own_environment else ""
            serve(request, folder, socket.socket(fileno=kept), own)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException as error:
            _print_from_package(error)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 255)

    def _start_sibling(self, request: dict[str, Any]) -> int | None:
        """What runs programs for this server; the descriptor that leads to it."""
        if not self._is_jailed or not request["execute"]:
            return None
        return executions.start_sibling(request["execute"], self._sources, self._places).detach()

    @property
    def _has_own_environment(self) -> bool:
        return self._places != [self._runtime]

    def _see_environment(self) -> None:
        """From here on the code of the package's environment runs; all of this process is enclosed."""
        if self._has_own_environment:
            jail.add_site_packages(self._places)
            site.execsitecustomize()
            if not self._runtime:
                import_warm_modules()

    def _enclose(self, request: dict[str, Any], package: int) -> str:
        """Put the limits on ourselves and the package in place; returns its folder."""
        if not self._is_jailed:
            os.setsid()
            linux.die_with_parent()
            write_package(package, os.path.join(request["folder"], request["name"]))
            return str(request["folder"])
        limits = jail.Limits(**request["limits"])
        jail.enclose_server(
            limits,
            lambda folder: write_package(package, os.path.join(folder, request["name"])),
            has_network=self._has_network,
        )
        return jail.PACKAGE_FOLDER


def _print_from_package(error: BaseException) -> None:
    """The traceback from the package's first frame on: its author has no business with ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((_OWN_FOLDER, "<frozen", _IMPORTLIB)):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """A datagram and its descriptors, which a fork, but no exec, inherits."""
    data, ancillary, _, _ = control.recvmsg(_MAX_REQUEST_BYTES, socket.CMSG_SPACE(8 * 4))
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)


def _redirect_output(log: int) -> None:
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115


def _close_all_but(kept: set[int]) -> None:
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 4096)
