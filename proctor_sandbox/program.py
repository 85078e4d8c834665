"""The program's own process: it gives up all its rights, then runs the program."""

import builtins
import contextlib
import io
import json
import linecache
import math
import os
import random
import resource
import socket
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from proctor_sandbox import linux, rings, seccomp
from proctor_sandbox.memory import bytes_of, private_bytes_of
from proctor_sandbox.terms import Limits
from proctor_sandbox.wire import read_message, write_message

OUT_OF_MEMORY, CANNOT_BEGIN = 86, 87
"""Exit codes. A program may choose them too, so they prove nothing about its work."""
_FOLDER = "/tmp"
_INODES_PER_MB = 128
_OPEN_FILES = 64
_VALUE, _CHANNEL = 3, 10
"""Descriptors: of the value's pipe, and of the warden's channel until the program begins."""


FORK_HOOKS: list[dict[str, Any]] = []
"""Arguments of `os.register_at_fork`, for programs that fork."""
VARIABLES = {"HOME": _FOLDER, "LANG": "C.UTF-8", "PATH": "/nonexistent"}
"""Environment variables of programs."""
_REHEARSALS = 20
_REHEARSAL = """
import math

def total(numbers):
    return sum(number * 2 for number in numbers)

class Point:
    def __init__(self, x):
        self.x = x

    def __repr__(self):
        return f"Point({self.x!r})"

points = [Point(n) for n in range(9)]
values = {str(point): math.sqrt(point.x) for point in points if point.x % 2}
for key, value in sorted(values.items(), key=lambda item: -item[1]):
    print(key, value, total([1, 2]), file=output)
"""


def become_program(channel: socket.socket, uid: int, gid: int) -> NoReturn:
    """Prepare this child, the first process of a namespace, wait for a request on `channel` and run it.

    `uid` and `gid`: the warm interpreter's own. On the channel follow three descriptors (stdout, stderr, the value's
    pipe), the limits and the request. The answer is "!" and the memory that the program starts with, or an error.
    """
    try:
        linux.die_with_parent()
        os.setsid()  # a signal to one's process group crosses namespaces
        channel = _keep_only(channel)
        status = _enclose(uid, gid)
        _, outputs, _, _ = socket.recv_fds(channel, 1, 3)
        if not outputs:  # it is not needed any more
            os._exit(0)
        limits = Limits(**json.loads(read_message(channel)))
        request = json.loads(read_message(channel))
        _fill_folder(request, limits)
        sizes = os.read(status, 8192).decode()
        _take_descriptors(request["stdin"], outputs)
        _forget_rights(limits, bytes_of(sizes, "VmSize"))
        channel.sendall(b"!%d" % private_bytes_of(sizes))
        channel.close()
    except BaseException as error:
        with contextlib.suppress(OSError):
            channel.sendall(f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(CANNOT_BEGIN)
    os._exit(_run(request["source"]))


def rehearse() -> None:
    """Take the steps of `become_program` that change nothing in the warm interpreter.

    What Python looks up, specializes and caches on the way is then inherited. Otherwise every program would do so
    again, and copy the memory that it touches.
    """
    ours, theirs = socket.socketpair()
    status = os.open("/proc/self/status", os.O_RDONLY)
    null = os.open("/dev/null", os.O_RDWR)
    limits = Limits()
    for _ in range(_REHEARSALS):
        linux.set_dumpable(False)
        linux.unshare(0)
        linux.drop_bounding_set()
        linux.limit_resources({resource.RLIMIT_CORE: 0})
        linux.drop_capabilities()
        with contextlib.suppress(OSError):
            linux.mount("tmpfs", "/nonexistent", "tmpfs", rings.PRIVATE)
        socket.send_fds(ours, [b"x"], [null])
        for message in (asdict(limits), {"source": _REHEARSAL, "stdin": "", "files": {}}):
            write_message(ours, json.dumps(message).encode())
        os.close(socket.recv_fds(theirs, 1, 1)[1][0])
        Limits(**json.loads(read_message(theirs)))
        source = json.loads(read_message(theirs))["source"]
        sizes = os.pread(status, 8192, 0).decode()
        bytes_of(sizes, "VmSize")
        private_bytes_of(sizes)
        with open(null, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as output:
            exec(compile(source, "main.py", "exec"), types.ModuleType("__main__").__dict__ | {"output": output})
    for descriptor in (status, null):
        os.close(descriptor)
    ours.close()
    theirs.close()


def _keep_only(channel: socket.socket) -> socket.socket:
    os.dup2(channel.detach(), _CHANNEL)
    os.closerange(3, _CHANNEL)
    os.closerange(_CHANNEL + 1, 4096)
    return socket.socket(fileno=_CHANNEL)


def _enclose(uid: int, gid: int) -> int:
    """Make separate mounts, network, IPC and host name; hide /proc. Returns a descriptor of our own status there."""
    linux.set_dumpable(True)  # our own uid_map must be ours to write
    linux.map_to_nobody(uid, gid)
    linux.set_dumpable(False)
    linux.unshare(linux.NEW_MOUNTS | linux.NEW_IPC | linux.NEW_NETWORK | linux.NEW_UTS)
    status = os.open("/proc/self/status", os.O_RDONLY)
    linux.mount("tmpfs", "/proc", "tmpfs", rings.PRIVATE | linux.MS_NOEXEC | linux.MS_RDONLY, "mode=555,size=4k")
    linux.drop_bounding_set()
    return status


def _fill_folder(request: dict[str, Any], limits: Limits) -> None:
    """Make the working directory with the given files."""
    given = len(request["stdin"]) * 4 + sum(4 * len(text) + 4096 for text in request["files"].values())
    size = (limits.file_mb << 20) + given
    inodes = _INODES_PER_MB * limits.file_mb + 2 * len(request["files"]) + 8
    linux.mount("tmpfs", _FOLDER, "tmpfs", rings.PRIVATE, f"mode=700,size={size},nr_inodes={inodes}")
    os.chdir(_FOLDER)
    for path, text in request["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(text)


def _take_descriptors(stdin: str, outputs: Sequence[int]) -> None:
    """Keep descriptors 0 to 3 and the channel; close all others."""
    if stdin:
        with open(".stdin", "wb") as file:
            file.write(stdin.encode(errors="surrogatepass"))
    source = os.open(".stdin" if stdin else "/dev/null", os.O_RDONLY)
    if stdin:
        os.unlink(".stdin")
    os.dup2(source, 0)
    kept = [os.dup(descriptor) if descriptor <= _VALUE else descriptor for descriptor in outputs]
    for target, descriptor in enumerate(kept, start=1):
        os.dup2(descriptor, target)
    os.closerange(_VALUE + 1, _CHANNEL)
    os.closerange(_CHANNEL + 1, 4096)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def _forget_rights(limits: Limits, mapped: int) -> None:
    size = limits.file_mb << 20
    bounds = {
        resource.RLIMIT_AS: mapped + (limits.memory_mb << 20),
        resource.RLIMIT_CPU: math.ceil(limits.seconds * limits.processes) + 1,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
    }
    linux.limit_resources(bounds)
    linux.drop_capabilities()
    linux.set_dumpable(False)
    seccomp.install(linux.libc)


class _Channel:
    """Provides the program's `submit` function."""

    is_used = False

    def submit(self, value: Any) -> None:
        """Return one value to the caller, as JSON."""
        text = json.dumps(value).encode()
        if self.is_used:
            raise RuntimeError("submit was called before: there is one value")
        self.is_used = True
        while text:
            text = text[os.write(_VALUE, text) :]


def _run(source: str) -> int:
    module = types.ModuleType("__main__")
    builtins.submit = _Channel().submit  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    random.seed(0)  # unseeded programs get the same random numbers every time
    sys.argv[:] = ["main.py"]
    sys.path.insert(0, _FOLDER)
    for hooks in FORK_HOOKS:
        os.register_at_fork(**hooks)
    linecache.cache["main.py"] = (len(source), None, source.splitlines(keepends=True), "main.py")
    code = 0
    try:
        exec(compile(source, "main.py", "exec"), module.__dict__)
        _wait_for_threads()
    except SystemExit as error:
        code = _code_of(error)
    except MemoryError:
        code = OUT_OF_MEMORY
    except BaseException as error:
        _print(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            code = code or 1
    return code & 255


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _print(error: BaseException) -> None:
    """Print its traceback without our frame."""
    text = io.StringIO()
    trace = error.__traceback__
    traceback.print_exception(type(error), error, trace.tb_next if trace else None, file=text)
    sys.stderr.write(text.getvalue())
