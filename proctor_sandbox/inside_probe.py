"""The program that runs another one on many inputs. `probe.py` sends its text into the sandbox.

It forks for each input. Only the children run the other program, without a descriptor of this process.
"""

import builtins
import contextlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
import types
from typing import Any, NoReturn

REQUEST = "probe.json"
_STDIN, _REPORT = ".input", 3
_DEEPEST = 40
_MOST_TIMEOUTS = 3
"""Inputs in a row after which a program that does not end is given up."""
_PRELUDE = """
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, lru_cache, reduce
from typing import *
"""
"""Names that graders of functions usually provide."""


def main() -> None:
    """Answer every input with one line of JSON on stdout: [outcome, text]."""
    with open(REQUEST, encoding="utf-8") as file:
        request = json.load(file)
    os.unlink(REQUEST)
    report = os.dup(1)
    os.close(1)  # the value's pipe and stdout never reach a child
    os.close(_REPORT)
    code, problem = None, ""
    try:
        code = compile(request["source"], "main.py", "exec")
    except BaseException as error:
        problem = type(error).__name__
    names: dict[str, Any] = {}
    if request["function"]:
        exec(_PRELUDE, names)
    timeouts = 0
    for text in request["inputs"]:
        if code is None:
            answer = ["missing", problem]
        elif timeouts >= _MOST_TIMEOUTS:
            answer = ["timeout", ""]
        else:
            answer = _answer(code, text, request, names)
            timeouts = timeouts + 1 if answer[0] == "timeout" else 0
        os.write(report, (json.dumps(answer) + "\n").encode())


def _answer(code: types.CodeType, text: str, request: dict[str, Any], names: dict[str, Any]) -> list[str]:
    with open(_STDIN, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write("" if request["function"] else text)
    output, output_end = os.pipe()
    value, value_end = os.pipe()
    child = os.fork()
    if child == 0:
        _become(code, text, request, names, output_end, value_end)
    os.close(output_end)
    os.close(value_end)
    ended = os.pidfd_open(child)
    parts, status = {output: bytearray(), value: bytearray()}, None
    outcome, deadline, most = "", time.monotonic() + request["seconds"], request["most"]
    poll = select.poll()
    for descriptor in (output, value, ended):
        poll.register(descriptor, select.POLLIN)
    while not outcome and status is None:
        left = deadline - time.monotonic()
        if left <= 0:
            outcome = "timeout"
        for descriptor, _ in poll.poll(max(0, left) * 1000):
            if descriptor == ended:
                _, status = os.waitpid(child, 0)
            elif not _read(descriptor, parts[descriptor], most):
                poll.unregister(descriptor)
            if len(parts[output]) > most or len(parts[value]) > 2 * most:
                outcome = "output"
    _end_all()
    if status is not None:
        for descriptor, content in parts.items():
            while len(content) <= 2 * most and _read(descriptor, content, most):
                pass
    for descriptor in (output, value, ended):
        os.close(descriptor)
    printed = bytes(parts[output][:most]).decode(errors="replace")
    if outcome:
        return [outcome, ""]
    if len(parts[output]) > most:
        return ["output", ""]
    try:
        kind, said = json.loads(parts[value])
        if type(kind) is not str or type(said) is not str:
            raise ValueError
    except ValueError:  # it ended itself
        kind, said = "killed", ""
    if request["function"]:
        return [kind, said[:most]]
    return ["ok", printed] if kind in ("ok", "object") else [kind, said[:most] or printed]


def _read(descriptor: int, content: bytearray, most: int) -> bool:
    """False at the end, or after more than `most`."""
    part = os.read(descriptor, 4096)
    content += part
    return bool(part) and len(content) <= 2 * most


def _end_all() -> None:
    """End every other process of the namespace. This one is its first process, which they cannot end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _become(
    code: types.CodeType, text: str, request: dict[str, Any], names: dict[str, Any], output: int, value: int
) -> NoReturn:
    """Run the program in this child and report its result. Never returns."""
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(_STDIN, os.O_RDONLY), 0)
        kept = [os.dup(value), os.dup(output)]
        os.dup2(kept[1], 1)
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        os.dup2(kept[0], _REPORT)
        os.closerange(_REPORT + 1, 256)
        with contextlib.suppress(OSError):
            os.unlink(_STDIN)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        size = hard - (request["memory_mb"] << 20)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        _, longest = resource.getrlimit(resource.RLIMIT_CPU)
        seconds = min(math.ceil(request["seconds"]) + 1, longest)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        write, dumps, leave = os.write, json.dumps, os._exit
        builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # as in an interpreter that a person starts
        del builtins.submit  # type: ignore[attr-defined]
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        function = request["function"]
        report = _run(code, function, text, names)
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        write(_REPORT, dumps(report).encode())
        leave(0)
    except BaseException:
        os._exit(1)


def _run(code: types.CodeType, function: str | None, text: str, names: dict[str, Any]) -> list[str]:
    module = types.ModuleType("submission" if function else "__main__")
    sys.modules[module.__name__] = module
    try:
        if function:
            module.__dict__.update(names)
            arguments = eval(text, {"__builtins__": {}})
        exec(code, module.__dict__)
        if not function:
            return ["ok", ""]
        called = module.__dict__.get(function)
        if called is None and isinstance(holder := module.__dict__.get("Solution"), type):
            called = getattr(holder(), function, None)
        if called is None:
            return ["missing", function]
        return _plain(called(*arguments))
    except SystemExit as error:
        fine = error.code in (None, 0) and not function
        return ["ok", ""] if fine else ["exit", str(error.code)[:40]]
    except BaseException as error:
        return ["error", type(error).__name__]


def _plain(value: Any) -> list[str]:
    """The value as a literal, if it consists of built-in types only."""
    level = [value]
    for _ in range(_DEEPEST):
        following = []
        for each in level[:100_000]:
            if type(each) is dict:
                following += [*each, *each.values()]
            elif type(each) in (list, tuple, set, frozenset):
                following += each
            elif each is not None and type(each) not in (bool, int, float, str, bytes, complex):
                return ["object", type(each).__name__]
        level = following
        if not level:
            return ["ok", repr(value)]
    return ["object", "deep"]
