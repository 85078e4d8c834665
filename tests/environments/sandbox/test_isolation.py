"""Programs cannot reach host files, other processes, the network, privileges or other executions."""

import os
import socket
from ast import literal_eval
from pathlib import Path

import pytest

from proctor_sandbox import Limits, execute
from proctor_sandbox.syscalls import CLONE, DENIED
from tests.environments.sandbox.conftest import Run

_CONTROL = "open('own.txt', 'w').write('own'); print(open('own.txt').read())"


def test_files_of_the_host_are_not_there(run: Run, tmp_path: Path) -> None:
    (secret := tmp_path / "secret.txt").write_text("s3cret")
    paths = ["/etc/passwd", "/etc/shadow", "/etc/hostname", str(secret), __file__, "/proc/1/environ", "/sys/kernel"]
    assert all(os.path.exists(path) for path in paths)
    assert run(_CONTROL).stdout == "own\n"
    tried = run(f"import os; print([path for path in {paths!r} if os.path.exists(path)])")
    assert tried.stdout == "[]\n"


def test_nothing_outside_its_folder_can_be_written(run: Run) -> None:
    assert run(_CONTROL).stdout == "own\n"
    for path in ("/x", "/usr/x", "/usr/lib/x", "/etc/x", "/proc/x", "/dev/x", "/package/x", "/environments/x"):
        result = run(f"open({path!r}, 'w')")
        assert (
            result.stderr.strip()
            .splitlines()[-1]
            .startswith(("OSError: [Errno 30]", "PermissionError", "FileNotFound"))
        )
    result = run("import json; open(json.__file__, 'a')")
    assert result.stderr.strip().splitlines()[-1].startswith(("OSError: [Errno 30]", "PermissionError"))


def test_links_do_not_lead_out(run: Run) -> None:
    inside = "import os; open('a', 'w').write('own'); os.symlink('/tmp/a', 'b'); print(open('b').read())"
    assert run(inside).stdout == "own\n"
    for code in (
        "os.symlink('/etc/passwd', 'l'); open('l')",
        "open('../../../../etc/passwd')",
        "os.symlink('/proc/1/root/etc/passwd', 'l'); open('l')",
        "os.chroot('/tmp'); open('../../../etc/passwd')",
        "os.fchdir(os.open('/', os.O_RDONLY)); open('etc/passwd')",
    ):
        last = run(f"import os; {code}").stderr.strip().splitlines()[-1]
        assert last.startswith(("FileNotFoundError", "PermissionError")), (code, last)
    assert "Error" in run("import os; os.link('/usr/lib/os-release', 'l')").stderr


def test_environment_variables_say_nothing(run: Run) -> None:
    names = run("import os; print(sorted(os.environ))").stdout
    assert literal_eval(names) == ["HOME", "LANG", "PATH"]
    words = run("import ctypes; print(ctypes.c_char_p.in_dll(ctypes.CDLL(None), 'program_invocation_name').value)")
    assert words.status == "ok"


def test_other_processes_cannot_be_seen_or_ended(run: Run) -> None:
    own = "import os, time\nif (pid := os.fork()) == 0: time.sleep(60)\nos.kill(pid, 9); print(os.wait()[1])"
    assert run(own).stdout == "9\n"
    assert run("import os; print(os.getpid(), os.getppid(), os.listdir('/proc'))").stdout == "1 0 []\n"
    for pid in (os.getpid(), os.getppid(), 2, 3):
        assert "ProcessLookupError" in run(f"import os; os.kill({pid}, 9)").stderr
    run("import os, signal\nfor n in (15, 9): os.kill(-1, n)\nos.killpg(0, 9)")
    run("import os; os.kill(0, 9)")
    run("import os; os.kill(os.getppid(), 9)")
    assert run("print('still here')").stdout == "still here\n"


def test_the_network_is_out_of_reach(run: Run) -> None:
    pair = "import socket; a, b = socket.socketpair(); a.send(b'own'); print(b.recv(9))"
    assert run(pair).stdout == "b'own'\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
        for address in (("127.0.0.1", port), ("::1", port), ("10.0.2.2", 80), ("1.1.1.1", 53)):
            told = run(f"import socket; socket.create_connection({address!r}, timeout=1)").stderr
            assert "Network is unreachable" in told or "Cannot assign requested address" in told, told
        assert "gaierror" in run("import socket; socket.getaddrinfo('example.org', 80)").stderr
        with pytest.raises(TimeoutError):
            listener.accept()
    for family in ("AF_NETLINK, socket.SOCK_RAW", "AF_PACKET, socket.SOCK_RAW", "AF_VSOCK, socket.SOCK_STREAM"):
        assert "not supported" in run(f"import socket; socket.socket(socket.{family})").stderr


def test_abstract_sockets_of_others_are_out_of_reach(run: Run) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0sandbox-test")
        listener.listen()
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect("\0sandbox-test")
        connect = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0sandbox-test')"
        assert "ConnectionRefusedError" in run(connect).stderr


@pytest.mark.parametrize(
    "call",
    [
        "ptrace(16, 1, 0, 0)",
        "unshare(0x10000000)",
        "unshare(0x00020000)",
        "setns(0, 0)",
        "mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
        "umount2(b'/proc', 2)",
        "chroot(b'/tmp')",
        "syscall(PIVOT_ROOT, b'.', b'.')",
        "syscall(PROCESS_VM_READV, 1, 0, 0, 0, 0, 0)",
        "syscall(CLONE, 0x10000000 | 17, 0, 0, 0, 0)",
        "syscall(MOUNT_SETATTR, -100, b'/', 0, b'0' * 32, 32)",
        "syscall(IO_URING_SETUP, 8, 0)",
        "syscall(BPF, 0, 0, 0)",
        "syscall(OPEN_BY_HANDLE_AT, 0, 0, 0)",
        "syscall(PIDFD_GETFD, 3, 0, 0)",
        "syscall(KEYCTL, 0, 0)",
    ],
)
def test_calls_that_widen_the_ring_are_refused(run: Run, call: str) -> None:
    machine = os.uname().machine
    numbers = {name.upper(): number for name, number in DENIED[machine].items()} | {"CLONE": CLONE[machine]}
    for name in sorted(numbers, key=len, reverse=True):
        call = call.replace(f"({name},", f"({numbers[name]},")
    prelude = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); ctypes.set_errno(0)\n"
    assert run(prelude + "print(libc.getpid(), ctypes.get_errno())").stdout == "1 0\n"
    assert run(prelude + f"print(libc.{call}, ctypes.get_errno())").stdout == "-1 1\n"


def test_it_has_no_rights(run: Run) -> None:
    source = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
header, data = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0)), ctypes.create_string_buffer(24)
libc.capget(header, data)
bounding = [number for number in range(41) if libc.prctl(23, number, 0, 0, 0) == 1]
told = {name: libc.prctl(code, 0, 0, 0, 0) for name, code in (("no_new_privs", 39), ("seccomp", 21), ("dumpable", 3))}
submit({"uids": os.getresuid(), "capabilities": list(data.raw[:24]), "bounding": bounding, **told})
"""
    assert run(source).value == {
        "uids": [65534] * 3,
        "capabilities": [0] * 24,
        "bounding": [],
        "no_new_privs": 1,
        "seccomp": 2,
        "dumpable": 0,
    }
    for call in ("setuid(0)", "setgroups([0])", "sched_setaffinity(0, {0, 1})", "mknod('/tmp/d', 0o60600, 0x800)"):
        assert run(f"import os; os.{call}").stderr.splitlines()[-1].startswith(("PermissionError", "OSError")), call


def test_nonexistent_memory_can_be_opened(run: Run) -> None:
    assert (
        run("import ctypes; x = ctypes.c_int(7); print(ctypes.c_int.from_address(ctypes.addressof(x)).value)").stdout
        == "7\n"
    )
    for path in ("/proc/self/mem", "/proc/1/mem", "/proc/1/maps", "/dev/mem", "/proc/kcore"):
        assert "FileNotFoundError" in run(f"open({path!r}, 'rb')").stderr


def test_programs_of_the_host_are_not_there(run: Run) -> None:
    for program in ("/bin/sh", "/usr/bin/env", "/usr/bin/mount", "/bin/su"):
        assert "FileNotFoundError" in run(f"import os; os.execv({program!r}, ['x'])").stderr


def test_nothing_is_left_for_the_next_execution(run: Run) -> None:
    leave = """
import builtins, json, os, socket, sys, time
open('left.txt', 'w').write('x'); open('/tmp/left2.txt', 'w').write('x')
os.environ['LEFT'] = 'x'; builtins.left = 1; json.left = 1; sys.path.append('/left'); sys.left = 1
time.time = lambda: 0; builtins.print = None
s = socket.socket(socket.AF_UNIX); s.bind('\\0left'); s.listen()
if os.fork() == 0:
    os.setsid(); time.sleep(60)
submit('left')
"""
    assert run(leave).value == "left"
    look = """
import builtins, json, os, socket, sys, time
found = [os.listdir('/tmp'), 'LEFT' in os.environ, hasattr(builtins, 'left'), hasattr(json, 'left')]
found.append('/left' in sys.path)
s = socket.socket(socket.AF_UNIX)
try: s.connect('\\0left'); found.append(True)
except OSError: found.append(False)
try: os.kill(-1, 0); found.append(True)
except ProcessLookupError: found.append(False)
submit(found + [time.time() > 1])
"""
    assert run(look).value == [[], False, False, False, False, False, False, True]


def test_the_callers_values_are_nowhere_in_its_process(run: Run) -> None:
    """The caller's private values never enter the sandbox, neither as objects nor in frames."""
    search = """
import gc, sys
needle = bytes([101, 120, 112, 101, 99, 116, 101, 100, 45, 120, 121, 122]).decode()
held = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
texts = [t for o in held for t in (o.values() if isinstance(o, dict) else o) if isinstance(t, str) and t is not needle]
frames, frame = [], sys._getframe().f_back
while frame:
    frames.append(str(frame.f_locals)); frame = frame.f_back
submit([any(needle in t for t in texts), any(needle in f for f in frames)])
"""
    expected = "".join(["expected", "-xyz"])
    assert run(search).value == [False, False]
    assert run(search + f"# {expected}").value == [True, True]  # its own source it may see


def test_patched_clocks_and_operators_stay_with_the_program() -> None:
    import time

    patch = """
import builtins, json, operator, time
time.time = time.monotonic = time.perf_counter = lambda: 0.0
class Everything(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
operator.eq = lambda a, b: True
builtins.sorted = lambda *a, **k: []
json.dumps = lambda *a, **k: '"always right"'
time.sleep(0.05)
print(time.time()); submit(Everything('wrong'))
"""
    result = execute(patch)
    assert result.seconds >= 0.05
    assert result.stdout == "0.0\n"
    assert type(result.value) is str
    assert result.value != "right"
    assert time.time() > 1


def test_a_program_cannot_answer_for_the_sandbox(run: Run) -> None:
    """Every descriptor that it can write to is one of its own streams."""
    source = """
import os
written = []
for descriptor in range(64):
    try: os.write(descriptor, b'{"status": "ok", "value": "forged"}'); written.append(descriptor)
    except OSError: pass
"""
    result = run(source, limits=Limits(seconds=5))
    assert result.value == {"status": "ok", "value": "forged"}
    assert result.stdout == result.stderr == '{"status": "ok", "value": "forged"}'
    assert run(source + "submit(written)").value is None
