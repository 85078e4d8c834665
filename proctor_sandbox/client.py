"""The caller's side: send a program to the warm interpreter and wait for its result. Safe to use from many threads."""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from proctor_sandbox.terms import MOST, Limits, Result, SandboxFailed, SandboxUnavailable
from proctor_sandbox.wire import read_message, write_message

START_SECONDS = 30.0
QUEUE_SECONDS = 600.0
"""Time that a program may wait for its turn."""
GRACE_SECONDS = 50.0
"""Time beyond the program's own limit before the sandbox counts as broken; long enough for a busy machine."""
_MAX_DEPTH = 64
_MAX_REQUEST_BYTES = 16 << 20


def execute(
    source: str, *, stdin: str = "", files: Mapping[str, str] | None = None, limits: Limits | None = None
) -> Result:
    """Run a Python program as `__main__` and return its result. `files` are put into its working directory.

    The program can return one JSON value with `submit(value)`. Raises SandboxUnavailable if no sandbox can be made, and
    SandboxFailed if it broke, but never an exception because of the program.
    """
    limits = limits or Limits()
    files = dict(files or {})
    for path in files:
        _check_path(path)
    return ask(_interpreter.connection(), source, limits, stdin=stdin, files=files)


def ask(
    control: socket.socket, source: str, limits: Limits, *, stdin: str = "", files: Mapping[str, str] | None = None
) -> Result:
    """Send one program to the warm interpreter at the other end of `control`, and return its result."""
    request = {"source": source, "stdin": stdin, "files": files or {}}
    message = json.dumps(request, ensure_ascii=True).encode()  # a model may write lone surrogates
    if len(message) > _MAX_REQUEST_BYTES:
        return Result("error", "", "the program is too long", None, 0.0)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            socket.send_fds(control, [b"x"], [theirs.fileno()])
        try:
            ours.settimeout(QUEUE_SECONDS)
            write_message(ours, json.dumps(asdict(limits)).encode())
            write_message(ours, message)
            if not ours.recv(1):
                raise SandboxFailed("the sandbox ended before the program began")
            ours.settimeout(limits.seconds + GRACE_SECONDS)
            answer = json.loads(read_message(ours))
        except OSError as error:
            raise SandboxFailed(f"the sandbox does not answer: {error}") from error
    if failure := answer.pop("failure", ""):
        raise SandboxFailed(failure)
    return Result(**{**answer, "value": _sound_value(answer["value"])})


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or "/".join(parts) != path or ".." in parts or path.startswith("/") or "\0" in path:
        raise ValueError(f"{path!r} is not a plain relative path")


def _sound_value(text: str) -> Any:
    """Return the submitted value; None if it is not JSON, not finite, too deep or not Unicode."""
    if not text:
        return None
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if _depth_is_below(value, _MAX_DEPTH) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _depth_is_below(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            child
            for node in level
            if isinstance(node, list | dict)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return True
    return False


class _Interpreter:
    """The warm interpreter of this process: attached by the process that started us, or made when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._is_ready = False
        self._refusal = ""

    def attach(self, control: socket.socket) -> None:
        self._control, self._is_ready = control, False

    def refuse(self, reason: str) -> None:
        self._refusal = reason

    def connection(self) -> socket.socket:
        with self._lock:
            if self._refusal:
                raise SandboxUnavailable(self._refusal)
            try:
                return self._ready_connection()
            except SandboxUnavailable as error:
                self._refusal = str(error)
                raise

    def _ready_connection(self) -> socket.socket:
        if self._control is None:
            self._control, self._is_ready = start_interpreter(len(os.sched_getaffinity(0))), True
        elif not self._is_ready:
            self._is_ready = _wait_until_ready(self._control)
            if not self._is_ready:
                raise SandboxUnavailable("the sandbox for programs could not be made")
        return self._control


_interpreter = _Interpreter()
attach = _interpreter.attach
"""Use a warm interpreter made by the process that started this one."""

refuse = _interpreter.refuse
"""Refuse to run programs in this process, with a reason."""


def ensure_available() -> None:
    """Raises SandboxUnavailable."""
    _interpreter.connection()


def start_interpreter(parallel: int, bounds: Limits = MOST) -> socket.socket:
    """Start a warm interpreter inside a separate ring. It runs up to `parallel` programs at a time."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    new_root = tempfile.mkdtemp(prefix="sandbox-")
    options = {
        "new_root": new_root,
        "environment": sys.prefix if sys.prefix != sys.base_prefix else "",
        "uid": 65_500 - os.getpid() % 500,
        "paths": [path for path in sys.path if path.endswith("site-packages")],
        "parallel": parallel,
        "bounds": asdict(bounds),
    }
    folder = str(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryFile() as log, theirs:
        process = subprocess.Popen(
            [sys.executable, *FLAGS, folder, str(theirs.fileno()), json.dumps(options)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        theirs.close()
        is_ready = _wait_until_ready(ours)
        os.rmdir(new_root)  # its content exists in another namespace only
        if not is_ready:
            ours.close()
            process.kill()
            process.wait()
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise SandboxUnavailable(f"no sandbox can be made here: {lines[-1] if lines else 'it did not start'}")
    atexit.register(process.wait)
    atexit.register(ours.close)  # runs first, and ends it
    return ours


def _wait_until_ready(control: socket.socket) -> bool:
    control.settimeout(START_SECONDS)
    try:
        return control.recv(1) == b"R"
    except OSError:
        return False
    finally:
        control.settimeout(None)


FLAGS = (
    *("-s", "-S", "-B", "-X", "utf8", "-c"),
    "import os, sys; sys.path[0] = sys.argv.pop(1); hooks = []; register = os.register_at_fork; "
    "os.register_at_fork = lambda **each: hooks.append(each); from proctor_sandbox.zygote import main; "
    "os.register_at_fork = register; sys.path.pop(0); main(sys.argv[1:], hooks)",
)
"""Flags that start the warm interpreter. The folder of this package and the interpreter's own arguments follow.

What modules do after a fork, such as seeding `random` again, is left to forks of the program's own.
"""
ENVIRONMENT = {
    "PATH": "/nonexistent",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LD_BIND_NOW": "1",  # once here rather than in every program
    "PYTHONHASHSEED": "0",  # results have to be repeatable: sets of strings always have the same order
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
