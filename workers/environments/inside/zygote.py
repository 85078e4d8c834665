"""The warm interpreter: imports `openenv` once, stays single-threaded, forks one process per environment server.

It runs inside the outer ring and imports from the shared runtime only, which we installed. Whatever belongs to a
package, including the start-up files of its environment, is seen by the forked process alone, inside both rings.

Speaks JSON datagrams over an inherited socket: a request carries the listening socket, the package and the log as
descriptors; the answers are `ready`, `started` and `exited`. Ends, with all its servers, when the socket closes.

A server that may run programs has a sibling that runs them: `proctor_sandbox` in a separate ring. It is made before the
server has any rights to lose or any code of the package, in namespaces next to the server's: the server keeps its own
strict filter, cannot see the sibling, and reaches it by one socket only.
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import proctor_sandbox
from proctor_sandbox import client, linux, rings, seccomp
from proctor_sandbox.syscalls import NAMESPACE_CALLS
from workers.environments.inside import jail
from workers.environments.inside.absent import without
from workers.environments.inside.server import serve, write_package

_WARM_MODULES = (
    *("fastapi", "fastapi.telemetry._runtime", "openenv.core.env_server"),
    "pydantic.v1",  # every FastAPI route looks at it
    *("uvicorn.lifespan.on", "uvicorn.loops.asyncio", "uvicorn.protocols.http.auto", "uvicorn.protocols.http.h11_impl"),
    "uvicorn.protocols.websockets.auto",
    "yaml",  # most packages read their own manifest
)
_STANDARD_MODULES = (
    *("asyncio", "concurrent.futures.thread", "dataclasses", "decimal", "email.message", "encodings.cp437", "enum"),
    *("http.client", "http.cookies", "importlib.metadata", "inspect", "ipaddress", "json", "logging.config"),
    *("mimetypes", "pathlib", "random", "socket", "ssl", "tempfile", "typing", "urllib.request", "uuid", "zipfile"),
)
"""For standalone environments, whose servers import everything else themselves."""
FAILED_TO_ENCLOSE = 70


def main(arguments: list[str]) -> None:
    """`arguments`: the control socket's descriptor and a JSON object with the host's options."""
    linux.die_with_parent()
    linux.set_dumpable(False)  # becoming another program has set it
    gc.disable()  # nothing that is imported is garbage
    control = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(control.fileno(), False)
    options = json.loads(arguments[1])
    for known in (sys.argv, sys.orig_argv, arguments):
        known[:] = ["python"]
    folder = Path(proctor_sandbox.__file__).parent
    sources = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}  # while they can be seen
    linux.limit_heap_arenas()
    if options["jail"]:
        sys.prefix = sys.exec_prefix = jail.PYTHON_FOLDER
        site.PREFIXES[:] = [jail.PYTHON_FOLDER]
    site.ENABLE_USER_SITE = False
    site.setquit()
    site.sethelper()
    for name in _STANDARD_MODULES:
        importlib.import_module(name)
    if options["runtime"]:
        site.addsitedir(options["runtime"])
        import_warm_modules()
    if threads := len(os.listdir("/proc/self/task")) - 1:
        raise RuntimeError(f"{threads} threads run after the imports; a fork would not be safe")
    gc.collect()
    gc.freeze()  # keep the collector from touching, and so copying, the shared pages
    gc.enable()
    ForkServer(control, sources, options).run()


def import_warm_modules() -> None:
    with without("gradio"):
        for name in _WARM_MODULES:
            with contextlib.suppress(ModuleNotFoundError):  # an old openenv has other modules
                importlib.import_module(name)


@dataclass(slots=True)
class ForkServer:
    _control: socket.socket
    _sources: Mapping[str, str]
    """Files of `proctor_sandbox`."""
    _options: Mapping[str, Any]
    """`jail`, `network`, `places`: site-packages folders of the environment, and `runtime`: the shared runtime's."""
    _children: dict[int, str] = field(default_factory=dict)
    """Names of servers by process id."""

    def run(self) -> None:
        readable, writable = os.pipe()  # becomes readable when a child ends
        os.set_blocking(readable, False)
        os.set_blocking(writable, False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(readable, select.POLLIN)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._send(event="ready")
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._control.fileno():
                    self._handle_request()
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(descriptor, 4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if name := self._children.pop(ended[0], None):
                        self._send(event="exited", id=name, code=os.waitstatus_to_exitcode(ended[1]))

    def _send(self, **message: object) -> None:
        self._control.send(json.dumps(message).encode())

    def _handle_request(self) -> None:
        """Receive a datagram with its descriptors, which a fork, but no exec, inherits, and fork the server."""
        data, ancillary, _, _ = self._control.recvmsg(64 << 10, socket.CMSG_SPACE(8 * 4))
        if not data:  # the host is gone, or ends us
            for child in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os._exit(0)
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        request = json.loads(data)
        try:
            child = os.fork()
        except OSError as error:
            os.write(descriptors[2], f"the sandbox could not be made: {error}\n".encode())
            self._send(event="exited", id=request["id"], code=FAILED_TO_ENCLOSE)
            child = -1
        if child == 0:
            self._become_server(request, list(descriptors))
        if child > 0:
            self._children[child] = request["id"]
        for descriptor in descriptors:
            os.close(descriptor)

    def _become_server(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        code = FAILED_TO_ENCLOSE
        try:
            listener, package, log = descriptors
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
            sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
            is_jailed, places, runtime = (self._options[name] for name in ("jail", "places", "runtime"))
            programs, folder = None, str(request["folder"])
            if is_jailed and request["execute"]:
                programs = _start_sibling(request["execute"], self._sources, places)
            if is_jailed:
                limits = jail.ServerLimits(**request["limits"])
                unpack = partial(write_package, package, request["name"])
                jail.enclose_server(limits, unpack, has_network=self._options["network"])
                folder = jail.PACKAGE_FOLDER
            else:
                os.setsid()
                linux.die_with_parent()
                write_package(package, request["name"], folder)
            self._send(event="started", id=request["id"])
            kept = os.dup(listener)
            self._control.close()
            first = 3
            for descriptor in sorted({kept} if programs is None else {kept, programs}):
                os.closerange(first, descriptor)
                first = descriptor + 1
            os.closerange(first, 4096)
            if programs is not None:
                client.attach(socket.socket(fileno=programs))
            elif is_jailed:
                client.refuse("this environment may not run programs: its manifest has no `resources: {execute: true}`")
            code, own = 1, ""
            if places != [runtime]:
                # from here on the code of the package's environment runs; all of this process is enclosed
                own = places[0]
                jail.add_site_packages(places)
                site.execsitecustomize()
                if not runtime:
                    import_warm_modules()
            serve(request, folder, socket.socket(fileno=kept), own)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException as error:
            # the traceback from the package's first frame on: its author has no business with ours
            trace = error.__traceback__
            own, library = os.path.dirname(os.path.abspath(__file__)), os.path.dirname(importlib.__file__)
            while trace and trace.tb_frame.f_code.co_filename.startswith((own, "<frozen", library)):
                trace = trace.tb_next
            traceback.print_exception(type(error), error, trace or error.__traceback__)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 255)


def _start_sibling(options: Mapping[str, Any], sources: Mapping[str, str], places: list[str]) -> int:
    """Fork the sibling that runs programs; returns the descriptor of our end of its control socket.

    `options`: parallel, bounds, cpus, first_cpu. Programs may import from the site-packages folders `places`.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            linux.die_with_parent()
            ours.close()
            control = theirs.fileno()
            os.closerange(3, control)
            os.closerange(control + 1, 4096)
            uid, gid = os.getuid(), os.getgid()
            linux.set_dumpable(True)  # our own uid_map must be ours to write
            namespaces = linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS
            linux.unshare(namespaces | linux.NEW_IPC | linux.NEW_NETWORK | linux.NEW_UTS)
            linux.map_to_nobody(uid, gid)
            rings.continue_as_first_process()
            linux.mount("proc", "/proc", "proc", rings.PRIVATE | linux.MS_NOEXEC, "subset=pid")
            folder = jail.PACKAGE_FOLDER
            linux.mount("tmpfs", folder, "tmpfs", rings.PRIVATE, "mode=755,size=1m")
            os.mkdir(f"{folder}/proctor_sandbox")
            for name, text in sources.items():
                Path(f"{folder}/proctor_sandbox/{name}").write_text(text)
            linux.make_read_only(folder)
            linux.stay_on_cores(options["cpus"], options["first_cpu"])
            linux.drop_bounding_set()
            linux.drop_capabilities()
            linux.set_dumpable(False)
            seccomp.install(linux.libc, NAMESPACE_CALLS)
            os.set_inheritable(control, True)
            given = json.dumps({"parallel": options["parallel"], "bounds": options["bounds"], "paths": places})
            arguments = [sys.executable, *client.FLAGS, folder, str(control), given]
            os.execve(sys.executable, arguments, client.ENVIRONMENT)
        finally:
            os._exit(70)
    theirs.close()
    return ours.detach()
