"""The sandbox itself: it comes back when lost, serves in turn, ends with its owner, and refuses rather than degrade."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from backend.settings import PROJECT_ROOT
from proctor_sandbox import Limits, SandboxFailed, SandboxUnavailable
from proctor_sandbox.client import _Interpreter, ask, start_interpreter

QUICK = Limits(seconds=20)


@pytest.fixture
def control() -> Iterator[socket.socket]:
    """A separate warm interpreter that runs one program at a time."""
    with start_interpreter(1) as control:
        yield control


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for known in found:
        with contextlib.suppress(OSError):
            found += [int(child) for child in Path(f"/proc/{known}/task/{known}/children").read_text().split()]
    return found[1:]


def _serving(pids: list[int]) -> int:
    """The parent of wardens and programs, the ends of the chain: shell, keeper, server."""
    return _ancestors(max(pids, key=lambda pid: len(_ancestors(pid))))[0]


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def test_a_lost_interpreter_comes_back() -> None:
    before = set(_descendants(os.getpid()))
    with start_interpreter(1) as control:
        assert ask(control, "print(1)", QUICK).stdout == "1\n"
        time.sleep(0.1)
        mine = [pid for pid in _descendants(os.getpid()) if pid not in before]
        failed: list[Exception] = []

        def wait_for_long() -> None:
            try:
                ask(control, "import time; time.sleep(15)", QUICK)
            except SandboxFailed as error:
                failed.append(error)

        waiting = threading.Thread(target=wait_for_long)
        waiting.start()
        time.sleep(0.2)
        os.kill(_serving(mine), signal.SIGKILL)
        assert ask(control, "print(2)", QUICK).stdout == "2\n"
        waiting.join(10)
        assert [type(error) for error in failed] == [SandboxFailed]


def test_programs_wait_for_their_turn(control: socket.socket) -> None:
    ends: list[float] = []

    def once() -> None:
        assert ask(control, "import time; time.sleep(0.1)", Limits(seconds=0.5)).status == "ok"
        ends.append(time.monotonic())

    threads = [threading.Thread(target=once) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gaps = [later - earlier for earlier, later in zip(sorted(ends), sorted(ends)[1:], strict=False)]
    assert min(gaps) > 0.08


def test_a_program_ends_when_no_one_waits_for_it(control: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    socket.send_fds(control, [b"x"], [theirs.fileno()])
    theirs.close()
    ours.sendall(b"")
    ours.close()
    begun = time.monotonic()
    assert ask(control, "print(3)", QUICK).stdout == "3\n"
    assert time.monotonic() - begun < 2


@pytest.mark.slow
def test_it_ends_with_its_owner() -> None:
    source = (
        "import os, sys; from proctor_sandbox import execute; print(execute('print(1)').status, flush=True); "
        "sys.stdin.readline(); os.kill(os.getpid(), int(sys.argv[1])) if len(sys.argv) > 1 else None"
    )
    for arguments in ([], [str(int(signal.SIGKILL))]):
        process = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            cwd=PROJECT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ok\n"
        left = _descendants(process.pid)
        assert len(left) >= 3
        process.stdin.close()
        process.wait(10)
        process.stdout.close()
        deadline = time.monotonic() + 5
        while alive := [pid for pid in left if os.path.exists(f"/proc/{pid}")]:
            assert time.monotonic() < deadline, alive
            time.sleep(0.02)


def test_requests_larger_than_the_bounds_get_the_bounds() -> None:
    with start_interpreter(1, Limits(seconds=0.2, memory_mb=32, output_bytes=100, processes=2, file_mb=1)) as control:
        greedy = Limits(seconds=50, memory_mb=4000, output_bytes=10**6, processes=60, file_mb=100)
        assert asdict(ask(control, "print('x' * 99)", greedy))["status"] == "ok"
        assert ask(control, "import time; time.sleep(9)", greedy).status == "timeout"
        assert ask(control, "bytearray(100 << 20)", greedy).status == "memory"
        assert ask(control, "print('x' * 1000)", greedy).status == "output"
        fill = "f = open('f', 'wb', 0); f.write(b'x' * (1 << 20))\ntry: open('g', 'wb', 0).write(b'x' * 99999)\n"
        assert ask(control, fill + "except OSError as error: print(error.errno)", greedy).stdout == "28\n"


def test_it_is_refused_where_it_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = _Interpreter()
    monkeypatch.setattr("proctor_sandbox.client.FLAGS", ("-S", "-c", "raise SystemExit('no namespaces here')"))
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match="no namespaces here"):
            fresh.connection()


def test_a_process_can_be_told_to_run_nothing() -> None:
    fresh = _Interpreter()
    fresh.refuse("not here")
    with pytest.raises(SandboxUnavailable, match="not here"):
        fresh.connection()
