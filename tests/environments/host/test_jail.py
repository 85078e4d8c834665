"""Limits of a jailed server. Each attack is paired with a permitted action; otherwise it would pass if nothing ran."""

import asyncio
import contextlib
import os
import socket
import time
from ast import literal_eval
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import LimitExceeded, SandboxError
from backend.settings import get_settings
from tests.envhost_fixture import HostProcess
from workers.environments.client import EnvHost, EnvServer

RESOURCES = ResourcesSpec(memory_mb=128, sessions=8)
SECONDS = 20.0


@pytest_asyncio.fixture
async def server(env_host: EnvHost, attacker: str) -> AsyncIterator[EnvServer]:
    assert (await env_host.status())["launcher"] == "jail"
    async with env_host.lease(attacker, RESOURCES) as server:
        yield server


async def attempt(server: EnvServer, code: str, timeout: float = SECONDS) -> str:
    """Run code inside; what it left in `result`, or its exception."""
    async with server.session() as session:
        await session.reset({}, timeout=SECONDS)
        return str((await session.step({"command": code}, timeout=timeout)).fields["text"])


async def test_the_network_is_out_of_reach(server: EnvServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        address = listener.getsockname()
        socket.create_connection(address).close()
        listener.accept()[0].close()
        tried = await attempt(server, f"import socket; socket.create_connection({address!r}, timeout=2)")
        assert tried.startswith("OSError: [Errno 101]")
        with pytest.raises(TimeoutError):
            listener.accept()


async def test_sockets_of_other_families_are_refused(server: EnvServer) -> None:
    assert await attempt(server, "import socket; result = socket.socketpair() is not None") == "True"
    for family in ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"):
        kind = "SOCK_SEQPACKET" if family == "AF_ALG" else "SOCK_RAW"
        tried = await attempt(server, f"import socket; socket.socket(socket.{family}, socket.{kind})")
        assert "Address family not supported" in tried


async def test_sockets_of_the_host_are_out_of_reach(server: EnvServer, host_process: HostProcess) -> None:
    path = host_process.address.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
    tried = await attempt(server, f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})")
    assert tried.startswith("FileNotFoundError")


async def test_host_files_cannot_be_seen(server: EnvServer, host_process: HostProcess) -> None:
    own = "/package/attacker/server/counter_environment.py"
    assert "SUPPORTS" in await attempt(server, f"result = open({own!r}).read()")
    for path in ("/etc/passwd", "/etc/shadow", str(host_process.data), __file__, "/sys/kernel", "/var", "/home"):
        assert await attempt(server, f"import os; result = os.path.exists({path!r})") == "False"
    assert os.path.exists("/etc/passwd")
    listed = await attempt(server, "import os; result = sorted(os.listdir('/'))")
    interpreter = get_settings().runtime_python.resolve().parts[1]
    ours = {"environments", "package", "proc", "proctor", "python", "tmp", interpreter}
    assert set(literal_eval(listed)) <= {"dev", "etc", "lib", "lib64", "usr"} | ours


async def test_nothing_outside_tmp_can_be_written(server: EnvServer) -> None:
    written = await attempt(server, "open('/tmp/mine', 'w').write('kept'); result = open('/tmp/mine').read()")
    assert written == "kept"
    for path in ("/x", "/package/attacker/models.py", "/package/x", "/usr/lib/x", "/etc/x", "/dev/x", "/proc/x"):
        tried = await attempt(server, f"open({path!r}, 'w').write('x')")
        assert tried.startswith(("OSError: [Errno 30]", "PermissionError", "FileNotFoundError")), (path, tried)
    library = await attempt(server, "import json; result = json.__file__")
    assert (await attempt(server, f"open({library!r}, 'a')")).startswith(("OSError: [Errno 30]", "PermissionError"))


async def test_links_do_not_lead_out(server: EnvServer) -> None:
    assert os.path.exists("/etc/passwd")
    for code in ("os.symlink('/etc/passwd', '/tmp/a'); open('/tmp/a')", "open('/tmp/../../../../etc/passwd')"):
        assert (await attempt(server, f"import os; {code}")).startswith("FileNotFoundError")


async def test_environment_variables_are_our_own(server: EnvServer) -> None:
    names = await attempt(server, "import os; result = sorted(os.environ)")
    assert literal_eval(names) == ["HOME", "LANG", "MAX_CONCURRENT_ENVS", "PATH"]
    seen = await attempt(server, "result = open('/proc/self/environ').read()")
    assert not any(value in seen for value in ("PROCTOR", os.environ.get("USER", "PROCTOR"), str(Path.home())))  # noqa: TID251


async def test_other_processes_cannot_be_seen_or_ended(server: EnvServer, host_process: HostProcess) -> None:
    seen = await attempt(server, "import os; result = [name for name in os.listdir('/proc') if name.isdigit()]")
    assert seen == "['1']"
    for pid in (host_process.process.pid, os.getpid()):
        tried = await attempt(server, f"import os; os.kill({pid}, 9)")
        assert tried.startswith("ProcessLookupError")
    assert host_process.process.poll() is None
    everyone = "import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(-1, 15)"
    assert (await attempt(server, everyone)).startswith(("ProcessLookupError", "None", "ValueError"))
    assert host_process.process.poll() is None


@pytest.mark.parametrize(
    "code",
    [
        "libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
        "libc.umount2(b'/package', 2)",
        "libc.unshare(0x10000000)",
        "libc.ptrace(16, 1, 0, 0)",
        "libc.chroot(b'/tmp')",
        "libc.syscall(272, 0x10000000)",
        "libc.syscall(319, b'hidden', 0)",
        "libc.syscall(425, 8, 0)",
        "libc.syscall(321, 0, 0, 0)",
        "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    ],
)
async def test_system_calls_that_widen_the_jail_are_refused(server: EnvServer, code: str) -> None:
    prelude = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
    assert int(await attempt(server, prelude + "result = libc.getpid()")) == 1
    assert await attempt(server, prelude + f"result = ({code}, ctypes.get_errno())") == "(-1, 1)"


async def test_it_has_no_rights(server: EnvServer) -> None:
    status = await attempt(server, "result = open('/proc/self/status').read()")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (lines["CapEff"], lines["CapPrm"], lines["CapBnd"]) == ("0" * 16,) * 3
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")
    assert lines["Uid"].split() == ["65534"] * 4
    assert (await attempt(server, "import os; os.setuid(0)")).startswith(("OSError", "PermissionError"))
    tried = await attempt(server, "open('/proc/1/mem', 'r+b')")
    assert tried.startswith(("PermissionError", "FileNotFoundError"))


async def test_processes_are_bounded(server: EnvServer) -> None:
    one = """
import os
pid = os.fork()
if pid == 0: os._exit(7)
result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    assert await attempt(server, one) == "7"
    bomb = """
import os, signal, time
pids = []
try:
    for _ in range(2000):
        pid = os.fork()
        if pid == 0:
            time.sleep(30); os._exit(0)
        pids.append(pid)
except OSError as error:
    result = (len(pids), type(error).__name__)
finally:
    for pid in pids: os.kill(pid, signal.SIGKILL)
    for pid in pids: os.waitpid(pid, 0)
"""
    count, error = literal_eval(await attempt(server, bomb))
    assert 5 < count < 80
    assert error == "BlockingIOError"


async def test_memory_is_bounded(server: EnvServer) -> None:
    assert await attempt(server, "result = len(bytearray(60 << 20))") == str(60 << 20)
    assert await attempt(server, "bytearray(1 << 30)") == "MemoryError: "
    shared = "import mmap; m = mmap.mmap(-1, 1 << 30); m.write(b'x' * (1 << 30))"
    assert (await attempt(server, shared)).startswith(("OSError", "MemoryError"))


async def test_the_disk_cannot_be_filled(server: EnvServer) -> None:
    fill = """
import os
written = 0
try:
    for number in range(1000):
        with open(f"/tmp/fill{number}", "wb") as file:
            written += file.write(b"x" * (1 << 20))
except OSError as error:
    result = (written >> 20, error.errno)
finally:
    for name in os.listdir("/tmp"): os.unlink("/tmp/" + name)
"""
    megabytes, number = literal_eval(await attempt(server, fill))
    assert 16 <= megabytes <= 64
    assert number == 28


async def test_it_cannot_run_the_programs_of_the_host(server: EnvServer) -> None:
    control = "subprocess.run([sys.executable, '-c', 'print(6*7)'], capture_output=True, text=True)"
    ran = await attempt(server, f"import subprocess, sys; result = {control}.stdout")
    assert ran == "42\n"
    for program in ("/bin/sh", "/usr/bin/env", "/usr/bin/mount"):
        assert (await attempt(server, f"import subprocess; subprocess.run([{program!r}])")).startswith("FileNotFound")


@pytest.mark.slow
async def test_many_processes_that_are_each_within_the_limit_are_ended(server: EnvServer) -> None:
    greedy = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        kept = bytearray(60 << 20)
        for place in range(0, len(kept), 4096): kept[place] = 1
        time.sleep(60); os._exit(0)
time.sleep(30)
"""
    with pytest.raises(SandboxError, match="its processes used"):
        await attempt(server, greedy, timeout=30)


STUBBORN = """
import subprocess, sys
code = '''
import signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
time.sleep(600)
'''
subprocess.Popen([sys.executable, "-c", code, "MARK"], start_new_session=True)
"""


async def test_processes_that_ignore_signals_end_with_their_server(env_host: EnvHost, attacker: str) -> None:
    mark = f"marked-{time.monotonic_ns()}"
    stubborn = STUBBORN.replace("MARK", mark)
    async with env_host.lease(attacker, RESOURCES) as server:
        await attempt(server, stubborn)
        assert _is_running(mark)
        with contextlib.suppress(LimitExceeded):
            await attempt(server, "import time; time.sleep(60)", timeout=0.1)
    for _ in range(100):
        if not _is_running(mark):
            break
        await asyncio.sleep(0.05)
    assert not _is_running(mark)


def _is_running(mark: str) -> bool:
    return any(mark.encode() in _command(path) for path in Path("/proc").glob("[0-9]*/cmdline"))


def _command(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
