"""One execution: make its namespaces, enforce its limits and return its result. The warden ends with it."""

import json
import math
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from proctor_sandbox import linux
from proctor_sandbox.memory import own_bytes, used_bytes
from proctor_sandbox.program import CANNOT_BEGIN, OUT_OF_MEMORY, become_program
from proctor_sandbox.terms import Limits, Status
from proctor_sandbox.wire import read_message, write_message

SETUP_SECONDS = 15.0
REQUEST_SECONDS = 30.0
LAST_SECONDS = 30.0
"""Time for ending the program and sending its result; long enough for a busy machine."""
MEASURE_SECONDS = 0.025
"""Interval between measurements of the memory of all its processes."""
MAX_VALUE_BYTES = 1 << 20
_CHUNK = 1 << 16


@dataclass
class Stream:
    """The program's output on one descriptor."""

    name: str
    most: int
    ours: int
    theirs: int
    content: bytearray = field(default_factory=bytearray)

    def take(self) -> bool:
        """False at its end."""
        part = os.read(self.ours, _CHUNK)
        if len(self.content) <= self.most:  # one byte more than allowed shows that it was too long
            self.content += part[: self.most + 1 - len(self.content)]
        return bool(part)

    @property
    def is_too_long(self) -> bool:
        return len(self.content) > self.most

    @property
    def text(self) -> str:
        return self.content[: self.most].decode(errors="replace")


def supervise(connection: socket.socket, bounds: Limits) -> None:
    """Read one request, run it and send the result."""
    connection.settimeout(REQUEST_SECONDS)
    request = json.loads(read_message(connection))
    limits = Limits(**request["limits"]).within(bounds)
    connection.sendall(b"b")
    signal.alarm(
        math.ceil(limits.seconds + SETUP_SECONDS + LAST_SECONDS)
    )  # ends us, and so the program, whatever happens
    try:
        answer = _Execution(connection, request, limits).run()
    except OSError as error:
        answer = {"failure": f"the sandbox could not be made: {error}"}
    write_message(connection, json.dumps(answer).encode())


class _Execution:
    def __init__(self, connection: socket.socket, request: dict[str, Any], limits: Limits) -> None:
        self._connection, self._request, self._limits = connection, request, limits
        bounds = {"stdout": limits.output_bytes, "stderr": limits.output_bytes, "value": MAX_VALUE_BYTES}
        self._streams = []
        for name, most in bounds.items():
            ours, theirs = os.pipe()
            self._streams.append(Stream(name, most, ours, theirs))
        self._open = {stream.ours: stream for stream in self._streams}
        self._verdict: Status | None = None

    def run(self) -> dict[str, Any]:
        self._make_namespaces()
        baseline = own_bytes()
        program = self._start()
        begun = time.monotonic()
        self._watch(program, begun + self._limits.seconds, baseline)
        seconds = time.monotonic() - begun
        os.kill(program, signal.SIGKILL)  # the first process of its namespace: all others end with it
        _, status, usage = os.wait4(program, 0)
        self._drain()
        code = os.waitstatus_to_exitcode(status)
        return {
            "status": self._verdict or _verdict(code),
            **{stream.name: stream.text for stream in self._streams},
            "exit_code": None if self._verdict else code,
            "seconds": min(seconds, self._limits.seconds),
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
        }

    def _make_namespaces(self) -> None:
        """Make user and process namespaces for the warden and the program; the program makes the others itself."""
        uid, gid = os.getuid(), os.getgid()
        linux.set_dumpable(True)  # our own uid_map must be ours to write
        linux.unshare(linux.NEW_USER | linux.NEW_PIDS)
        linux.map_to_nobody(uid, gid)
        linux.set_dumpable(False)

    def _start(self) -> int:
        """Returns when the program is enclosed and about to begin."""
        ready, theirs = os.pipe()
        program = os.fork()
        if program == 0:
            become_program(self._request, self._limits, [stream.theirs for stream in self._streams], theirs)
        for descriptor in (theirs, *(stream.theirs for stream in self._streams)):
            os.close(descriptor)
        readable, _, _ = select.select([ready], [], [], SETUP_SECONDS)
        answer = os.read(ready, 4096) if readable else b"it took too long"
        os.close(ready)
        if answer != b"!":
            os.kill(program, signal.SIGKILL)
            os.waitpid(program, 0)
            raise OSError(answer.decode(errors="replace") or "it ended at once")
        return program

    def _watch(self, program: int, deadline: float, baseline: int) -> None:
        """Watch the program until it ends, exceeds a limit, or its caller is gone."""
        poll = select.poll()
        ended = os.pidfd_open(program)
        for descriptor in (*self._open, ended):
            poll.register(descriptor, select.POLLIN)
        poll.register(self._connection, select.POLLIN | select.POLLHUP)
        next_measurement = time.monotonic() + MEASURE_SECONDS
        while self._verdict is None:
            now = time.monotonic()
            if now >= deadline:
                self._verdict = "timeout"
                return
            if now >= next_measurement:
                if used_bytes(program, baseline) > self._limits.memory_mb << 20:
                    self._verdict = "memory"
                    return
                next_measurement = time.monotonic() + MEASURE_SECONDS
            for descriptor, _ in poll.poll(1000 * (min(deadline, next_measurement) - now) + 0.5):
                if descriptor == ended:
                    return
                if descriptor == self._connection.fileno():
                    self._verdict = "killed"
                elif not self._take(descriptor):
                    poll.unregister(descriptor)

    def _take(self, descriptor: int) -> bool:
        stream = self._open[descriptor]
        if not stream.take():
            del self._open[descriptor]
            return False
        if stream.is_too_long:
            self._verdict = "output"
        return True

    def _drain(self) -> None:
        """Read the rest of the pipes, which no process writes to any more."""
        for stream in self._open.values():
            while stream.take():
                pass
            if stream.is_too_long and self._verdict is None:
                self._verdict = "output"


def _verdict(code: int) -> Status:
    if code == OUT_OF_MEMORY:
        return "memory"
    if code == -signal.SIGXCPU:
        return "timeout"
    if code == CANNOT_BEGIN:
        return "error"
    return "killed" if code < 0 else "error" if code else "ok"
