"""Programs are forked ahead of need: they hold nothing of other executions, and get the limits of their own request."""

import os
import signal
import socket
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from proctor_sandbox import Limits, Result, SandboxFailed
from proctor_sandbox.client import ask, start_interpreter
from proctor_sandbox.memory import descendants
from proctor_sandbox.wire import write_message

QUICK = Limits(seconds=20)
PARALLEL = 2
only_root_sees = pytest.mark.skipif(os.getuid() != 0, reason="only root can inspect processes of the sandbox")


def _status(pid: int, name: str) -> list[str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1:] for line in text.splitlines() if line.startswith(f"{name}:"))


@dataclass(frozen=True)
class Sandbox:
    control: socket.socket
    interpreter: int
    """The process that forks wardens and programs."""

    def run(self, source: str, limits: Limits = QUICK, stdin: str = "", **files: str) -> Result:
        return ask(self.control, source, limits, stdin=stdin, files=files)

    def wardens(self) -> list[int]:
        """Children in the interpreter's process namespace."""
        depth = len(_status(self.interpreter, "NSpid"))
        return [pid for pid in descendants(self.interpreter)[1:] if len(_status(pid, "NSpid")) == depth]

    def waiting(self) -> list[int]:
        """The programs that wait for a request, once each warden has one."""
        deadline = time.monotonic() + 10
        while True:
            wardens = self.wardens()
            found = [pid for pid in descendants(self.interpreter)[1:] if pid not in wardens]
            # the last thing that a program gives up before it waits
            if len(found) == len(wardens) and all(int(_status(pid, "CapBnd")[0], 16) == 0 for pid in found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.01)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    before = set(descendants(os.getpid()))
    with start_interpreter(PARALLEL) as control:
        ask(control, "print(1)", QUICK)
        mine = [pid for pid in descendants(os.getpid()) if pid not in before]
        parents = {int(_status(pid, "PPid")[0]) for pid in mine}
        # it starts a chain: the shell, the keeper, and the interpreter that serves
        yield Sandbox(control, max(parents & set(mine)))


def _memory_contains(pid: int, needle: bytes) -> bool:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(each, 16) for each in span.split("-"))
                memory.seek(start)
                if needle in memory.read(end - start):
                    return True
    return False


@pytest.mark.slow
@only_root_sees
def test_no_program_inherits_a_text_of_another_execution(sandbox: Sandbox) -> None:
    needle = "".join(["needle-", "in-the-heap"])
    source = f"kept = {needle!r}; print(kept, input(), open('f').read()); submit(kept)"
    for _ in range(3):
        assert sandbox.run(source, stdin=needle, f=needle).value == needle
    assert [pid for pid in sandbox.waiting() if _memory_contains(pid, needle.encode())] == []
    assert not _memory_contains(sandbox.interpreter, needle.encode())
    assert _memory_contains(os.getpid(), needle.encode())  # the search does find it


@only_root_sees
def test_a_waiting_program_has_only_its_own_descriptors_and_namespaces(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda _: sandbox.run("import time; time.sleep(0.2)"), range(PARALLEL)))
    waiting = sandbox.waiting()
    assert len(waiting) == PARALLEL
    for pid in waiting:
        assert sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd")) == [0, 1, 2, 3, 10]
        assert os.readlink(f"/proc/{pid}/fd/3").endswith("/status")
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    processes = [sandbox.interpreter, *waiting]
    for kind in ("user", "pid", "mnt", "net", "ipc", "uts"):
        assert len({os.readlink(f"/proc/{pid}/ns/{kind}") for pid in processes}) == len(processes), kind


@only_root_sees
def test_wardens_may_make_no_namespaces(sandbox: Sandbox) -> None:
    """They have one filter more than the interpreter: that of programs."""
    filters = int(_status(sandbox.interpreter, "Seccomp_filters")[0])
    assert [int(_status(pid, "Seccomp_filters")[0]) for pid in sandbox.wardens()] == [filters + 1] * PARALLEL


def test_every_program_gets_the_limits_of_its_own_request(sandbox: Sandbox) -> None:
    source = """
import os, resource as r
disk = os.statvfs("/tmp")
print([r.getrlimit(kind)[1] for kind in (r.RLIMIT_NPROC, r.RLIMIT_FSIZE, r.RLIMIT_CPU)], disk.f_blocks * disk.f_frsize)
print(r.getrlimit(r.RLIMIT_AS)[1] >> 20, len(os.listdir("/tmp")))
"""
    for limits in (Limits(2, 64, 4096, 3, 2), Limits(9, 512, 4096, 30, 20), Limits(2, 64, 4096, 3, 2)):
        first, second = sandbox.run(source, limits).stdout.splitlines()
        cpu = int(limits.seconds * limits.processes) + 1
        assert first == f"{[limits.processes, limits.file_mb << 20, cpu]} {limits.file_mb << 20}"
        space, files = literal_eval(second.replace(" ", ","))
        assert limits.memory_mb < space < limits.memory_mb + 60
        assert files == 0


def test_a_large_request_takes_nothing_of_the_programs_memory(sandbox: Sandbox) -> None:
    hoard = "kept = bytearray(40 << 20)\nfor at in range(0, len(kept), 4096): kept[at] = 1\nprint(len(kept) >> 20)"
    limits = Limits(seconds=20, memory_mb=64)
    assert sandbox.run(f"{hoard}\n# {'x' * (8 << 20)}", limits).stdout == "40\n"
    assert sandbox.run(hoard.replace("40", "80"), limits).status == "memory"


def test_processes_are_bounded(sandbox: Sandbox) -> None:
    """Each warden has one program that runs and one that waits."""
    with ThreadPoolExecutor(8) as pool:
        running = [pool.submit(sandbox.run, "import time; time.sleep(0.15)") for _ in range(8)]
        most = 0
        while not all(each.done() for each in running):
            most = max(most, len(descendants(sandbox.interpreter)) - 1)
            time.sleep(0.005)
    assert PARALLEL < most <= 3 * PARALLEL
    assert len(sandbox.waiting()) == len(sandbox.wardens()) == PARALLEL


@only_root_sees
def test_a_lost_program_that_waited_is_replaced(sandbox: Sandbox) -> None:
    for pid in sandbox.waiting():
        os.kill(pid, signal.SIGKILL)
    for number in range(PARALLEL + 1):
        assert sandbox.run(f"print({number})").stdout == f"{number}\n"
    assert sandbox.waiting()


@only_root_sees
def test_a_lost_warden_takes_its_program_along_and_is_replaced(sandbox: Sandbox) -> None:
    failed: list[Exception] = []

    def run_long() -> None:
        try:
            sandbox.run("import time; time.sleep(15)")
        except SandboxFailed as error:
            failed.append(error)

    before = sandbox.waiting()
    caller = threading.Thread(target=run_long)
    caller.start()
    time.sleep(0.2)
    for pid in sandbox.wardens():
        os.kill(pid, signal.SIGKILL)
    caller.join(10)
    assert [type(error) for error in failed] == [SandboxFailed]
    assert sandbox.run("print(2)").stdout == "2\n"
    assert not set(sandbox.waiting()) & set(before)


def _hand_over_a_file(control: socket.socket) -> None:
    with open("/dev/null") as file:
        socket.send_fds(control, [b"x"], [file.fileno()])


def _hand_over_nothing(control: socket.socket) -> None:
    control.send(b"x")


def _send(*messages: bytes) -> Callable[[socket.socket], None]:
    def send(control: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(control, [b"x"], [theirs.fileno()])
            theirs.close()
            with suppress(BrokenPipeError):  # the first message was enough
                for message in messages:
                    write_message(ours, message)

    return send


@pytest.mark.parametrize(
    "attack",
    [
        _hand_over_a_file,
        _hand_over_nothing,
        _send(b"[]"),
        _send(b"{" * 5000),
        _send(b'{"seconds": NaN}', b"{}"),
        _send(b'{"processes": 1.5}', b'{"source": "", "stdin": "", "files": {}}'),
        _send(b"{}", b"no JSON"),
        _send(b"{}", b'{"source": 1, "stdin": "", "files": {"../../x": "x"}}'),
    ],
)
def test_a_malformed_request_ends_nothing_but_itself(sandbox: Sandbox, attack: Callable[[socket.socket], None]) -> None:
    for _ in range(2 * PARALLEL):
        attack(sandbox.control)
    assert sandbox.run("print('still here')").stdout == "still here\n"
    assert sandbox.waiting()
