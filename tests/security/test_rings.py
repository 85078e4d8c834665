"""Code of an environment's packages runs inside both rings from its first instruction: `.pth` files, imports, builds.

Each attack is started by a `.pth` file, next to an honest one that must work, as root and as an ordinary user.
"""

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import SandboxError
from backend.settings import PROJECT_ROOT, get_settings
from tests.envhost_fixture import package_files
from tests.environments.host.test_other_hosts import _become_ordinary_user
from workers.environments.zygotes import Zygote, site_packages_of

pytestmark = pytest.mark.slow

Serve = Callable[..., dict[str, Any]]
SECONDS = 90
_TELL = """
import json as _json, sys as _sys
def tell(**facts):
    print("TOLD " + _json.dumps(facts), flush=True)
def attempt(call):
    try:
        return f"done: {call()!r}"[:200]
    except BaseException as error:
        return f"{type(error).__name__} {getattr(error, 'errno', '')}".strip()
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    return [libc.syscall(number, *arguments), ctypes.get_errno()]
"""


@pytest.fixture(params=["as started", "ordinary user"])
def serve(request: pytest.FixtureRequest) -> Serve:
    before = None
    if request.param == "ordinary user":
        if os.getuid():
            pytest.skip("an ordinary user runs all the other tests as one already")
        before = _become_ordinary_user

    def run(start: str = "", **given: Any) -> dict[str, Any]:
        """`start` runs by a `.pth` file, and may `tell(fact=…)`."""
        files = {"first.pth": "import at_start\n", "at_start.py": _TELL + start, **given.pop("files", {})}
        package = package_files(before_app=given.pop("before_app", ""))
        ended = subprocess.run(
            [sys.executable, "-P", str(PROJECT_ROOT / "tests/security/run_environment.py")],
            input=json.dumps({"files": files, "package": package, **given}),
            cwd=PROJECT_ROOT,
            env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)},  # noqa: TID251
            capture_output=True,
            text=True,
            timeout=SECONDS,
            preexec_fn=before,
        )
        assert ended.returncode == 0, ended.stderr
        result = json.loads(ended.stdout.splitlines()[-1])
        told: dict[str, Any] = {}
        for line in (result["log"] + "\n" + result["error"]).splitlines():
            if line.startswith("TOLD "):
                told |= json.loads(line.removeprefix("TOLD "))
        return {**result, **told}

    return run


_HONEST = {
    "honest.py": "WORD = 'found'\n",
    "honest-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: honest\nVersion: 1.2\n",
    "nested.pth": "/environments/0/lib\n",
}


_SEEN_BY_THE_PACKAGE = """
import at_start, honest, importlib.metadata, importlib.util, subprocess, sys
code = "import honest, sys; print(honest.WORD, sys.prefix)"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
at_start.tell(word=honest.WORD, version=importlib.metadata.version("honest"), child=child.stdout + child.stderr,
    prefix=sys.prefix, has_runtime=importlib.util.find_spec("openenv") is not None,
    path=[path.rpartition("/lib/")[0] for path in sys.path if path.endswith("site-packages")])
"""


@pytest.mark.parametrize("stands_alone", [False, True])
def test_an_honest_environment_works(serve: Serve, stands_alone: bool) -> None:
    result = serve("tell(started=True)", files=_HONEST, stands_alone=stands_alone, before_app=_SEEN_BY_THE_PACKAGE)
    assert result["started"]
    assert (result["word"], result["version"], result["prefix"]) == ("found", "1.2", "/python")
    assert result["child"].splitlines()[-1] == "found /python"
    if stands_alone:
        assert result["path"] == ["/environments/0"]
        assert not result["has_runtime"]
        assert "No module named 'openenv'" in result["error"]  # it would bring its own
    else:
        assert result["path"] == ["/environments/0", "/environments/1"]
        assert result["has_runtime"]
        assert result["error"] == ""


def test_start_up_files_may_make_no_system_calls_that_widen_the_rings(serve: Serve) -> None:
    start = """
import os, socket, mmap
NEW_USER, NEW_NET, NEW_NS = 0x10000000, 0x40000000, 0x20000
tell(
    pid=call(39)[0] == os.getpid(),
    user=call(272, NEW_USER), net=call(272, NEW_USER | NEW_NET), mounts=call(272, NEW_NS),
    clone=call(56, NEW_USER | 17, 0, 0, 0, 0), clone3=call(435, ctypes.create_string_buffer(88), 88),
    mount=call(165, b"tmpfs", b"/tmp", b"tmpfs", 0, None), setattr=call(442, -100, b"/tmp", 0, b"x" * 32, 32),
    uring=call(425, 8, ctypes.create_string_buffer(120)), bpf=call(321, 0, None, 0), keys=call(250, 0, -3, 0),
    fault=call(323, 0), trace=call(101, 16, 1, 0, 0), memfd=call(319, b"x", 0), setns=call(308, 0, 0),
    pair=attempt(lambda: [s.close() for s in socket.socketpair()]),
    packet=attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    netlink=attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    status={line.split(":")[0]: line.split()[-1] for line in open("/proc/self/status") if ":" in line},
)
"""
    result = serve(start)
    assert result["error"] == ""
    assert result["pid"] is True
    assert result["pair"].startswith("done")
    denied = ("user", "net", "mounts", "clone", "mount", "setattr", "uring", "bpf", "keys", "fault", "trace", "memfd")
    assert {name: result[name] for name in (*denied, "setns")} == {name: [-1, 1] for name in (*denied, "setns")}
    assert result["clone3"] == [-1, 38]
    assert (result["packet"], result["netlink"]) == ("OSError 97", "OSError 97")
    status = result["status"]
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert [status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")] == ["0" * 16] * 4


def test_start_up_files_are_bounded_in_processes_memory_and_files(serve: Serve) -> None:
    start = """
import os, signal, time, resource
pids = []
try:
    for _ in range(600):
        pid = os.fork()
        if pid == 0:
            time.sleep(30); os._exit(0)
        pids.append(pid)
    refused = ""
except OSError as error:
    refused = type(error).__name__
for pid in pids: os.kill(pid, signal.SIGKILL)
for pid in pids: os.waitpid(pid, 0)
names = ("RLIMIT_AS", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_NPROC")
def allocate(size):
    return len(bytearray(size))
def write():
    with open("/tmp/big", "wb") as file:
        for _ in range(200): file.write(b"x" * (1 << 20))
tell(refused=refused, count=len(pids), small=attempt(lambda: allocate(60 << 20)),
     large=attempt(lambda: allocate(3 << 30)), file=attempt(write),
     limits={name: resource.getrlimit(getattr(resource, name))[1] for name in names})
os.unlink("/tmp/big")
"""
    result = serve(start)
    assert result["error"] == ""
    assert result["refused"] == "BlockingIOError"
    assert 5 < result["count"] < 100
    assert result["small"].startswith("done")
    assert result["large"] == "MemoryError"
    assert result["file"].startswith("OSError")
    assert all(value >= 0 for value in result["limits"].values())
    assert (result["limits"]["RLIMIT_CORE"], result["limits"]["RLIMIT_MEMLOCK"]) == (0, 0)


def test_processes_of_start_up_files_count_as_memory_of_the_server_before_it_answers(serve: Serve) -> None:
    start = """
import os, time
tell(begun=True)
for _ in range(12):
    if os.fork() == 0:
        kept = bytearray(120 << 20)
        for place in range(0, len(kept), 4096): kept[place] = 1
        time.sleep(60); os._exit(0)
time.sleep(60)
"""
    result = serve(start)
    assert "its processes used" in result["error"]
    assert serve("tell(begun=True)")["error"] == ""


def test_processes_that_share_their_memory_are_counted_once(serve: Serve) -> None:
    forks = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        time.sleep(60); os._exit(0)
"""
    result = serve(files={"forks.py": forks}, before_app="import forks", seconds=1.5, resources={"memory_mb": 128})
    assert result["error"] == ""
    assert result["is_alive"]
    assert result["memory"] < 300 << 20 < result["resident"]


def test_start_up_files_reach_no_channel_to_the_host(serve: Serve) -> None:
    start = """
import os, socket, stat
kinds = []
for name in os.listdir("/proc/self/fd"):
    try:
        if not stat.S_ISSOCK(os.fstat(int(name)).st_mode): continue
    except OSError:
        continue
    each = socket.socket(fileno=os.dup(int(name)))
    kinds.append([int(each.type), bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))])
    forged = attempt(lambda: [each.send(b'{"event": "started", "id": "x"}'), each.send(b"{")])
    each.close()
tell(kinds=kinds)
"""
    result = serve(start)
    assert result["error"] == ""
    assert result["kinds"] == [[1, True]]  # its own listening socket


def test_host_paths_do_not_reach_the_jail(serve: Serve) -> None:
    start = """
import gc, os, sys
def frames():
    frame = sys._getframe()
    while frame:
        yield frame.f_code.co_filename
        yield repr(frame.f_locals)[:100_000]
        frame = frame.f_back
seen = [open("/proc/self/cmdline").read(), attempt(lambda: open("/proc/self/environ").read())]
seen += [*sys.orig_argv, *sys.argv, *sys.path]
seen += list(frames()) + [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
places = [(text, text.find(path)) for text in seen for path in (ROOT, "/tmp/" + "pr-") if path in text]
tell(found=sorted({text[max(0, place - 60) : place + 60] for text, place in places})[:5], count=len(seen))
""".replace("ROOT", repr(str(PROJECT_ROOT)))
    result = serve(start)
    assert result["error"] == ""
    assert result.get("count", 0) > 100, result
    assert result["found"] == []


@pytest.mark.parametrize("stands_alone", [False, True])
def test_an_interpreter_in_the_environment_is_never_run(serve: Serve, tmp_path: Any, stands_alone: bool) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o001)
    marker = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {marker}\n"
    home_files = dict.fromkeys(("bin/python", "bin/python3", "lib/sitecustomize.py"), script)
    home_files["pyvenv.cfg"] = f"home = {tmp_path}\ninclude-system-site-packages = true\n"
    custom = f"print('customized', flush=True)\ntry:\n    open({str(marker)!r}, 'w')\nexcept OSError: pass\n"
    result = serve(
        "tell(started=True)",
        files={"sitecustomize.py": custom},
        home_files=home_files,
        stands_alone=stands_alone,
        before_app="",
    )
    assert result["started"]
    assert "customized" in result["log"] + result["error"]
    assert not marker.exists()


_SPEAKER = """#!{python}
import json, os, socket, sys, time
control = socket.socket(fileno=int(next(text for text in sys.argv[5:] if text.isdigit())))
say = lambda **message: control.send(json.dumps(message).encode())
say(event="ready")
name = json.loads(control.recv(65536))["id"]
{speech}
time.sleep(60)
"""
_FORGED = {
    "not JSON": "control.send(b'{')",
    "too deep": "control.send(b'[' * 1000)",
    "too long": "control.send(b'x' * 5000)",
    "no meaning": "say(event='fetch', id=name)",
    "of another type": "say(event='exited', id=name, code='0')",
    "beyond its range": "say(event='exited', id=name, code=10**9)",
    "more than is known": "say(event='started', id=name, extra=1)",
    "of a fork that was not requested": "say(event='started', id='other')",
    "twice": "say(event='started', id=name); say(event='started', id=name)",
    "a flood": "\nfor _ in range(10_000): control.send(b'{}')",
}


def _speaker(folder: Path, speech: str) -> Zygote:
    """A hostile interpreter in place of ours, which sends what `speech` says."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    python.write_text(_SPEAKER.format(python=sys.executable, speech=speech))
    python.chmod(0o755)
    return Zygote(python, is_jailed=False, new_root=folder / "root", uid=61_234)


@pytest.mark.parametrize("speech", _FORGED.values(), ids=_FORGED)
async def test_an_interpreter_that_forges_messages_is_ended(tmp_path: Path, speech: str) -> None:
    zygote = _speaker(tmp_path, speech)
    await zygote.start()
    process = zygote._process
    assert process is not None
    try:
        with contextlib.suppress(SandboxError):
            forked = await zygote.fork("mine", {}, [])
            await asyncio.wait_for(forked.exited.wait(), SECONDS)
        await asyncio.wait_for(process.wait(), SECONDS)
        assert "broke its protocol" in zygote.breach
        assert not zygote.is_alive
        with pytest.raises(SandboxError, match="broke its protocol"):
            await zygote.fork("next", {}, [])
    finally:
        await zygote.stop()


async def test_an_interpreter_cannot_have_another_process_ended(tmp_path: Path) -> None:
    """The sender comes from the kernel; only processes of this very interpreter are accepted and killed."""
    bystander = await asyncio.create_subprocess_exec("sleep", "60")
    relayed = """
if os.fork() == 0:
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.01)
    say(event="started", id=name)
    time.sleep(60)
"""
    own = _speaker(tmp_path, "\nif os.fork() == 0:\n    say(event='started', id=name); time.sleep(60)\n")
    await own.start()
    forked = await own.fork("mine", {}, [])
    assert forked.pid not in {0, bystander.pid}
    assert own.breach == ""
    handle = os.pidfd_open(forked.pid)
    forked.kill()
    await asyncio.to_thread(lambda: select.select([handle], [], [], 10))
    assert Path(f"/proc/{forked.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    os.close(handle)
    await own.stop()
    away = tmp_path / "away"
    away.mkdir()
    orphan = _speaker(away, relayed)
    await orphan.start()
    with contextlib.suppress(SandboxError):
        strange = await orphan.fork("mine", {}, [])
        assert strange.pid == 0
    assert "not its own" in orphan.breach
    await orphan.stop()
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


@pytest.mark.parametrize("linked", ["home", "home/lib", "site-packages", ""])
async def test_links_in_the_place_of_an_environment_are_refused(tmp_path: Path, linked: str) -> None:
    runtime = site_packages_of(get_settings().runtime_python)
    tail = runtime.relative_to(runtime.parents[2])
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (elsewhere / tail).mkdir(parents=True)
    own = home / tail
    place = {"home": home, "home/lib": home / "lib", "site-packages": own}.get(linked)
    if place is None:
        own.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(elsewhere / place.relative_to(home))
    zygote = Zygote(get_settings().runtime_python, [own], is_jailed=True, new_root=tmp_path / "root", uid=61_234)
    if place is None:
        await zygote.start()
        assert zygote.is_alive
    else:
        with pytest.raises(SandboxError, match=r"is not a plain lib/python3\.\d+/site-packages folder"):
            await zygote.start()
    await zygote.stop()
