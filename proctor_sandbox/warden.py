"""The warden: takes requests, has each run by a program's process, enforces its limits and returns its result."""

import contextlib
import json
import math
import os
import select
import signal
import socket
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from proctor_sandbox.memory import used_bytes
from proctor_sandbox.program import CANNOT_BEGIN, OUT_OF_MEMORY
from proctor_sandbox.terms import Limits, Status
from proctor_sandbox.wire import read_message, write_message

SETUP_SECONDS = 15.0
REQUEST_SECONDS = 30.0
LAST_SECONDS = 30.0
"""Time for ending the program and sending its result; long enough for a busy machine."""
MEASURE_SECONDS = 0.025
"""Interval between measurements of the memory of all its processes."""
MAX_VALUE_BYTES = 1 << 20
MAX_EXECUTIONS = 1000
_CHUNK = 1 << 16
_MAX_LIMITS_BYTES = 4096
_ATTEMPTS = 3
"""Processes to try until one is ready for a request."""


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


@dataclass(frozen=True, slots=True)
class _Program:
    """A process in its own namespaces that waits for a request."""

    process: int
    channel: socket.socket
    handle: int
    """A pidfd."""

    def end(self) -> None:
        """End it and, as it is the first process of its namespace, all that it started."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def close(self) -> None:
        self.channel.close()
        os.close(self.handle)


class Warden:
    """Runs one request after another, each in a process that was forked before the request was read."""

    def __init__(self, control: socket.socket, channel: socket.socket, bounds: Limits) -> None:
        self._control, self._channel, self._bounds = control, channel, bounds
        self._programs: deque[_Program | str] = deque()
        """Programs that wait, or why one could not be forked."""
        self._ends: dict[int, tuple[int, float]] = {}
        """Wait status and CPU time by process."""

    def serve(self) -> NoReturn:
        """Serve until the control socket closes, or for MAX_EXECUTIONS: another warden takes over."""
        self._order()
        for _ in range(MAX_EXECUTIONS):
            message, received, _, _ = socket.recv_fds(self._control, 16, 1)
            if not message:
                os._exit(0)
            for descriptor in received:
                try:
                    connection = socket.socket(fileno=descriptor)
                except OSError:  # not a socket
                    os.close(descriptor)
                    continue
                with connection, contextlib.suppress(OSError):  # the caller is gone
                    self._supervise(connection)
                signal.alarm(0)
        os._exit(0)

    def _supervise(self, connection: socket.socket) -> None:
        """Read one request, run it and send the result."""
        connection.settimeout(REQUEST_SECONDS)
        limits = Limits(**json.loads(read_message(connection, _MAX_LIMITS_BYTES))).within(self._bounds)
        request = read_message(connection)
        connection.sendall(b"b")
        signal.alarm(
            math.ceil(limits.seconds + SETUP_SECONDS + LAST_SECONDS)
        )  # ends us, and so the program, whatever happens
        try:
            answer = self._run(connection, request, limits)
        except OSError as error:
            answer = {"failure": f"the sandbox could not be made: {error}"}
        write_message(connection, json.dumps(answer).encode())

    def _run(self, connection: socket.socket, request: bytes, limits: Limits) -> dict[str, Any]:
        for attempts_left in range(_ATTEMPTS - 1, -1, -1):
            program = self._next_program()
            execution = _Execution(connection, program, limits)
            try:
                execution.run(request)
            except ConnectionError:  # what waited was lost before it began
                if not attempts_left:
                    raise
                continue
            finally:
                program.end()
                status, cpu_seconds = self._end_of(program)
                program.close()
                execution.close()
            return execution.answer(os.waitstatus_to_exitcode(status), cpu_seconds)
        raise AssertionError("unreachable")

    def _order(self) -> None:
        self._channel.send(b"next")

    def _next_program(self) -> _Program:
        failure = ""
        for _ in range(2):  # a failure may be old
            while not self._programs:
                self._receive()
            program = self._programs.popleft()
            self._order()
            if isinstance(program, _Program):
                return program
            failure = program
        raise OSError(failure)

    def _end_of(self, program: _Program) -> tuple[int, float]:
        while program.process not in self._ends:
            self._receive()
        return self._ends.pop(program.process)

    def _receive(self) -> None:
        """Receive one message of the warm interpreter."""
        message, descriptors, _, _ = socket.recv_fds(self._channel, 512, 2)
        kind, _, text = message.decode().partition(" ")
        if kind == "program":
            channel, handle = descriptors
            self._ends.pop(int(text), None)  # of an earlier process with this number
            self._programs.append(_Program(int(text), socket.socket(fileno=channel), handle))
        elif kind == "ended":
            process, status, cpu_seconds = text.split()
            self._ends[int(process)] = int(status), float(cpu_seconds)
        else:
            self._programs.append(text)


class _Execution:
    def __init__(self, connection: socket.socket, program: _Program, limits: Limits) -> None:
        self._connection, self._program, self._limits = connection, program, limits
        bounds = {"stdout": limits.output_bytes, "stderr": limits.output_bytes, "value": MAX_VALUE_BYTES}
        self._streams = [Stream(name, most, *os.pipe()) for name, most in bounds.items()]
        self._open = {stream.ours: stream for stream in self._streams}
        self._verdict: Status | None = None
        self._seconds = 0.0

    def run(self, request: bytes) -> None:
        baseline = self._hand_over(request)
        begun = time.monotonic()
        self._watch(begun + self._limits.seconds, baseline)
        self._seconds = time.monotonic() - begun

    def answer(self, code: int, cpu_seconds: float) -> dict[str, Any]:
        return {
            "status": self._verdict or _verdict(code),
            **{stream.name: stream.text for stream in self._streams},
            "exit_code": None if self._verdict else code,
            "seconds": min(self._seconds, self._limits.seconds),
            "cpu_seconds": cpu_seconds,
        }

    def close(self) -> None:
        """Read the rest of the pipes, which no process writes to any more, and close them."""
        self._close_ends_of_program()
        for stream in self._open.values():
            while stream.take():
                pass
            if stream.is_too_long and self._verdict is None:
                self._verdict = "output"
        for stream in self._streams:
            os.close(stream.ours)

    def _hand_over(self, request: bytes) -> int:
        """Send the request. Returns when the program is enclosed and about to begin; how much memory it starts with."""
        channel = self._program.channel
        channel.settimeout(SETUP_SECONDS)
        with contextlib.suppress(BrokenPipeError):  # the answer shows why
            socket.send_fds(channel, [b"x"], [stream.theirs for stream in self._streams])
            self._close_ends_of_program()
            write_message(channel, json.dumps(asdict(self._limits)).encode())
            write_message(channel, request)
        answer = channel.recv(4096)
        if not answer:
            raise ConnectionResetError("it ended at once")
        if not answer.startswith(b"!"):
            raise OSError(answer.decode(errors="replace"))
        return int(answer[1:])

    def _close_ends_of_program(self) -> None:
        for stream in self._streams:
            if stream.theirs >= 0:
                os.close(stream.theirs)
                stream.theirs = -1

    def _watch(self, deadline: float, baseline: int) -> None:
        """Watch the program until it ends, exceeds a limit, or its caller is gone."""
        poll = select.poll()
        ended = self._program.handle
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
                if used_bytes(self._program.process, baseline) > self._limits.memory_mb << 20:
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


def _verdict(code: int) -> Status:
    if code == OUT_OF_MEMORY:
        return "memory"
    if code == -signal.SIGXCPU:
        return "timeout"
    if code == CANNOT_BEGIN:
        return "error"
    return "killed" if code < 0 else "error" if code else "ok"
