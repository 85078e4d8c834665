"""Programs that take all they can get: time, processes, memory, disk, output. Each is paired with a modest one."""

import time
from ast import literal_eval

import pytest

from proctor_sandbox import Limits
from tests.environments.sandbox.conftest import Run

_FORKS = """
import os, time
count, error = 0, None
try:
    for _ in range({tries}):
        if os.fork() == 0:
            time.sleep(5); os._exit(0)
        count += 1
except OSError as caught:
    error = caught.errno
print((count, error))
"""


def test_a_fork_bomb_stops_at_the_limit(run: Run) -> None:
    assert literal_eval(run(_FORKS.format(tries=3)).stdout) == (3, None)
    count, error = literal_eval(run(_FORKS.format(tries=500), limits=Limits(processes=16)).stdout)
    assert (count, error) == (15, 11)


def test_processes_that_fork_on_end_with_the_time(run: Run) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = run(bomb, limits=Limits(seconds=0.4))
    assert result.status == "timeout"
    assert run("print(1)").stdout == "1\n"


def test_threads_count_as_processes(run: Run) -> None:
    source = "import threading, time\nfor n in range({n}): threading.Thread(target=time.sleep, args=(.05,)).start()"
    assert run(source.format(n=5)).status == "ok"
    assert "can't start new thread" in run(source.format(n=100)).stderr


def test_an_endless_loop_that_ignores_signals_ends(run: Run) -> None:
    ignore = """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
"""
    assert run(ignore + "print('alive')").stdout == "alive\n"
    begun = time.monotonic()
    assert run(ignore + "while True: pass", limits=Limits(seconds=0.3)).status == "timeout"
    assert time.monotonic() - begun < 3


def test_sleeping_counts_as_time(run: Run) -> None:
    assert run("import time; time.sleep(30)", limits=Limits(seconds=0.2)).status == "timeout"


_HOARD = "kept = bytearray({mb} << 20)\nfor at in range(0, len(kept), 4096): kept[at] = 1\nprint(len(kept) >> 20)"


def test_the_heap_is_bounded(run: Run) -> None:
    assert run(_HOARD.format(mb=60), limits=Limits(memory_mb=128)).stdout == "60\n"
    assert run(_HOARD.format(mb=200), limits=Limits(memory_mb=128)).status == "memory"
    assert run("x = []\nwhile True: x.append(' ' * 100_000)", limits=Limits(memory_mb=64)).status == "memory"


@pytest.mark.parametrize("flags", ["mmap.MAP_PRIVATE", "mmap.MAP_SHARED"])
def test_mapped_memory_is_bounded(run: Run, flags: str) -> None:
    source = f"""
import mmap
m = mmap.mmap(-1, {{mb}} << 20, {flags} | mmap.MAP_ANONYMOUS)
m.write(b"x" * ({{mb}} << 20)); print(1)
"""
    assert run(source.format(mb=20), limits=Limits(memory_mb=128)).stdout == "1\n"
    assert run(source.format(mb=200), limits=Limits(memory_mb=128)).stdout == ""


def test_processes_share_one_bound(run: Run) -> None:
    source = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        kept = b"x" * ({mb} << 20); time.sleep({s}); os._exit(0)
for _ in range(5): os.wait()
print("done")
"""
    assert run(source.format(mb=5, s=0.1), limits=Limits(memory_mb=100)).stdout == "done\n"
    assert run(source.format(mb=60, s=1.5), limits=Limits(memory_mb=100)).status == "memory"


def test_there_is_no_memory_next_to_the_heap(run: Run) -> None:
    assert run("import os; print(os.path.exists('/tmp'), os.path.exists('/dev/shm'))").stdout == "True False\n"
    assert "PermissionError" in run("import os; os.memfd_create('x')").stderr
    shared = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.getpid(), libc.{call}, ctypes.get_errno())"
    )
    for call in ("shmget(0, 1 << 20, 0o1666)", "msgget(0, 0o1666)", "mq_open(b'/x', 0o102, 0o600, None)"):
        assert run(shared.format(call=call)).stdout == "1 -1 1\n"


_FILL = """
import os
written = 0
try:
    for number in range({files}):
        with open(f"f{{number}}", "wb", buffering=0) as file:
            written += file.write(b"x" * ({bytes}))
except OSError as error:
    print((written, error.errno))
else:
    print((written, None))
"""


def test_the_disk_cannot_be_filled(run: Run) -> None:
    limits = Limits(file_mb=4)
    assert literal_eval(run(_FILL.format(files=3, bytes="1 << 20"), limits=limits).stdout) == (3 << 20, None)
    written, error = literal_eval(run(_FILL.format(files=50, bytes="1 << 20"), limits=limits).stdout)
    assert written <= 5 << 20
    assert error == 28
    assert "File too large" in run("open('big', 'wb').write(b'x' * (20 << 20))", limits=limits).stderr


def test_inodes_cannot_be_used_up(run: Run) -> None:
    _, error = literal_eval(run(_FILL.format(files=5000, bytes="0"), limits=Limits(file_mb=2)).stdout)
    assert error == 28
    assert literal_eval(run(_FILL.format(files=100, bytes="0"), limits=Limits(file_mb=2)).stdout) == (0, None)


def test_descriptors_are_bounded(run: Run) -> None:
    source = "kept = [open('/dev/zero') for _ in range({n})]\nprint(len(kept))"
    assert run(source.format(n=20)).stdout == "20\n"
    assert "Too many open files" in run(source.format(n=500)).stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut(run: Run, stream: str) -> None:
    source = f"import sys\nfor _ in range({{n}}): sys.{stream}.write('x' * 1000)"
    assert len(getattr(run(source.format(n=60)), stream)) == 60_000
    result = run(source.format(n=10_000_000), limits=Limits(seconds=10))
    assert (result.status, len(getattr(result, stream))) == ("output", 65_536)
    assert result.seconds < 5


def test_a_flood_on_the_values_pipe_is_cut(run: Run) -> None:
    result = run("import os\nwhile True: os.write(3, b'1' * 65536)", limits=Limits(seconds=10))
    assert (result.status, result.value) == ("output", None)


def test_a_daemon_that_keeps_stdout_open_holds_no_one_up(run: Run) -> None:
    source = (
        "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60); os._exit(0)\nprint('parent is done')"
    )
    begun = time.monotonic()
    result = run(source, limits=Limits(seconds=20))
    assert (result.status, result.stdout) == ("ok", "parent is done\n")
    assert time.monotonic() - begun < 5


def test_limits_cannot_be_raised(run: Run) -> None:
    lower = "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 20, 1 << 20)); print('lowered')"
    assert run(lower).stdout == "lowered\n"
    for kind in ("AS", "NPROC", "FSIZE", "NOFILE", "CORE"):
        source = f"import resource as r; r.setrlimit(r.RLIMIT_{kind}, (r.RLIM_INFINITY, r.RLIM_INFINITY))"
        assert "not allowed to raise" in run(source).stderr
    assert "PermissionError" in run("import os; os.nice(-5)").stderr
