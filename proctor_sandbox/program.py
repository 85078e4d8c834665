"""The program's own process: it gives up all its rights, then runs the program."""

import builtins
import io
import json
import linecache
import math
import os
import random
import resource
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import Any, NoReturn

from proctor_sandbox import linux, rings, seccomp
from proctor_sandbox.terms import Limits

OUT_OF_MEMORY, CANNOT_BEGIN = 86, 87
"""Exit codes. A program may choose them too, so they prove nothing about its work."""
_FOLDER = "/tmp"
_INODES_PER_MB = 128
_OPEN_FILES = 64
_VALUE = 3


def become_program(request: dict[str, Any], limits: Limits, outputs: Sequence[int], ready: int) -> NoReturn:
    """Run the program in this child, the first process of a namespace. `outputs`: stdout, stderr, the value's pipe."""
    try:
        linux.die_with_parent()
        os.setsid()  # a signal to one's process group crosses namespaces
        mapped = linux.mapped_bytes()  # while there is a /proc
        _enclose(request, limits)
        _take_descriptors(request["stdin"], outputs, ready)
        _forget_rights(limits, mapped)
        os.write(ready, b"!")
        os.close(ready)
    except BaseException as error:
        os.write(ready, f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(CANNOT_BEGIN)
    os._exit(_run(request["source"]))


def _enclose(request: dict[str, Any], limits: Limits) -> None:
    """Make separate mounts, network, IPC and host name, and an empty working directory; hide /proc."""
    linux.unshare(linux.NEW_MOUNTS | linux.NEW_IPC | linux.NEW_NETWORK | linux.NEW_UTS)
    given = len(request["stdin"]) * 4 + sum(4 * len(text) + 4096 for text in request["files"].values())
    size = (limits.file_mb << 20) + given
    inodes = _INODES_PER_MB * limits.file_mb + 2 * len(request["files"]) + 8
    linux.mount("tmpfs", _FOLDER, "tmpfs", rings.PRIVATE, f"mode=700,size={size},nr_inodes={inodes}")
    linux.mount("tmpfs", "/proc", "tmpfs", rings.PRIVATE | linux.MS_NOEXEC | linux.MS_RDONLY, "mode=555,size=4k")
    os.chdir(_FOLDER)
    for path, text in request["files"].items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(text)


def _take_descriptors(stdin: str, outputs: Sequence[int], ready: int) -> None:
    """Keep descriptors 0 to 3 and `ready`; close all others."""
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
    os.closerange(_VALUE + 1, ready)
    os.closerange(ready + 1, 4096)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


def _forget_rights(limits: Limits, mapped: int) -> None:
    size = limits.file_mb << 20
    bounds = {
        resource.RLIMIT_AS: mapped + (limits.memory_mb << 20),
        resource.RLIMIT_CPU: math.ceil(limits.seconds * limits.processes) + 1,
        resource.RLIMIT_NPROC: limits.processes + 1,  # the warden counts too
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
    }
    linux.limit_resources(bounds)
    linux.drop_bounding_set()
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
    os.environ.clear()  # noqa: TID251
    os.environ.update({"HOME": _FOLDER, "LANG": "C.UTF-8", "PATH": "/nonexistent"})  # noqa: TID251
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
