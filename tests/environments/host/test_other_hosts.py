"""Env hosts of other kinds: over the network, full, without a sandbox, run by an ordinary user, ended."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError
from backend.settings import get_settings
from proctor_sandbox import linux
from tests.envhost_fixture import HostProcess, package_files, prepared, start_host
from workers.environments.client import EnvHost, EnvServer
from workers.environments.pool import TTL_SECONDS
from workers.environments.virtual_environments import own_files

pytestmark = pytest.mark.slow
RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="po-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def _play(server: EnvServer) -> int:
    async with server.session() as session:
        await session.reset({}, timeout=SECONDS)
        return int((await session.step({"amount": 3}, timeout=SECONDS)).fields["total"])


async def test_over_the_network_it_asks_for_its_token_and_carries_the_wire(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    host = start_host(folder, address=address, PROCTOR_ENVHOST_TOKEN="secret-token")
    try:
        for token in ("", "guess"):
            async with EnvHost(address, token) as client:
                with pytest.raises(SandboxError, match="requires its token"):
                    await client.status()
        async with EnvHost(address, "secret-token") as client:
            hash_ = await prepared(client, package_files())
            async with client.lease(hash_, RESOURCES) as server:
                assert await asyncio.gather(*(_play(server) for _ in range(20))) == [3] * 20
    finally:
        host.stop()


def test_over_the_network_it_does_not_start_without_a_token(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="PROCTOR_ENVHOST_TOKEN"):
        start_host(folder, address="http://127.0.0.1:1")


def test_a_second_host_on_the_same_folder_does_not_start(host_process: HostProcess, folder: Path) -> None:
    with pytest.raises(RuntimeError, match="another env host serves"):
        start_host(folder, address=host_process.address)


async def test_a_full_host_lets_its_clients_wait_in_turn_and_a_hanging_start_ends(folder: Path) -> None:
    host = start_host(folder, "--max-servers", "1", "--start-seconds", "3")
    try:
        async with EnvHost(host.address) as client:
            hash_ = await prepared(client, package_files())
            order: list[int] = []

            async def use(number: int) -> None:
                async with client.lease(hash_, RESOURCES) as server:
                    assert (await client.status())["capacity"]["servers"] == 1
                    order.append(await _play(server) + number)
                    await asyncio.sleep(0.1)

            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(use(number)))
                await asyncio.sleep(0.05)
            await asyncio.gather(*tasks)
            assert order == [3, 4, 5, 6]
            with pytest.raises(SandboxError, match=r"did not answer within 3 s of its start\nI am waiting"):
                await prepared(client, package_files(before_app="print('I am waiting')\nimport time; time.sleep(60)"))
            assert await _lease_and_play(client, hash_) == 3
    finally:
        host.stop()


async def _lease_and_play(client: EnvHost, hash_: str) -> int:
    async with client.lease(hash_, RESOURCES) as server:
        return await _play(server)


async def test_a_client_that_vanishes_frees_its_place_and_one_that_computes_for_long_keeps_its_own(
    folder: Path,
) -> None:
    host = start_host(folder, "--max-servers", "2")
    try:
        async with EnvHost(host.address) as client:
            hash_ = await prepared(client, package_files())
            async with client.lease(hash_, RESOURCES) as server:
                async with server.session() as session:
                    first = session._process.id
                order = {"hash": hash_, "resources": RESOURCES.model_dump()}
                abandoned = await client.request("POST", "/servers", json=order)
                assert abandoned["ttl_seconds"] == TTL_SECONDS
                with ThreadPoolExecutor(1) as elsewhere:
                    waiting = elsewhere.submit(asyncio.run, _seconds_until_it_plays(host.address, hash_))
                    time.sleep(TTL_SECONDS + 4)  # so that nothing of this client moves
                    assert waiting.result() < TTL_SECONDS + 10
                async with server.session() as session:
                    assert session._process.id == first
                    assert not (await session.reset({}, timeout=SECONDS)).done
    finally:
        host.stop()


async def _seconds_until_it_plays(address: str, hash_: str) -> float:
    begun = time.monotonic()
    async with EnvHost(address) as client:
        assert await _lease_and_play(client, hash_) == 3
    return time.monotonic() - begun


async def test_without_a_sandbox_foreign_code_is_refused_unless_it_is_allowed(folder: Path) -> None:
    host = start_host(folder / "a", "--launcher", "process")
    try:
        async with EnvHost(host.address) as client:
            assert (await client.status())["launcher"] == "none"
            with pytest.raises(SandboxError, match="PROCTOR_ALLOW_UNSANDBOXED"):
                await prepared(client, package_files())
    finally:
        host.stop()
    host = start_host(folder / "b", "--launcher", "process", PROCTOR_ALLOW_UNSANDBOXED="true")
    try:
        async with EnvHost(host.address) as client:
            assert (await client.status())["launcher"] == "process"
            assert await _lease_and_play(client, await prepared(client, package_files())) == 3
    finally:
        host.stop()


async def test_a_host_that_is_killed_leaves_nothing_behind_and_a_run_continues_when_it_was_started_again(
    folder: Path,
) -> None:
    host = start_host(folder)
    try:
        async with EnvHost(host.address) as client:
            lease = client.lease(await prepared(client, package_files()), RESOURCES, servers=2)
            async with lease as server:
                assert await _play(server) == 3
                left = _descendants(host.process.pid)
                assert len(left) >= 4
                host.stop(signal.SIGKILL)
                await _wait_for_the_end_of(left)
                with pytest.raises(SandboxError):
                    await _play(server)
                waiting = asyncio.create_task(_play(server))
                await asyncio.sleep(0.3)
                host = await asyncio.to_thread(start_host, folder)
                assert await waiting == 3
                assert await asyncio.gather(*(_play(server) for _ in range(8))) == [3] * 8
    finally:
        host.stop()


async def test_a_host_that_ends_leaves_nothing_behind(folder: Path) -> None:
    host = start_host(folder)
    async with EnvHost(host.address) as client:
        lease = client.lease(await prepared(client, package_files()), RESOURCES, servers=2)
        server = await lease.__aenter__()
        assert await _play(server) == 3
        left = _descendants(host.process.pid)
        assert len(left) >= 4
        host.stop()
        await _wait_for_the_end_of(left)
        with pytest.raises(SandboxError):
            await _play(server)
        await lease.__aexit__(None, None, None)


async def _wait_for_the_end_of(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        await asyncio.sleep(0.02)


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for known in found:
        found += [int(child) for child in Path(f"/proc/{known}/task/{known}/children").read_text().split()]
    return found[1:]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user runs all the other tests as one already")
async def test_the_jail_holds_for_an_ordinary_user_too(folder: Path) -> None:
    from tests.environments.host.conftest import RUN_CODE

    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir()
    os.chown(data, 12345, 12345)
    host = start_host(data, before_exec=_become_ordinary_user)
    try:
        async with EnvHost(host.address) as client:
            assert (await client.status())["launcher"] == "jail"
            hash_ = await prepared(client, package_files("attacker", in_step=RUN_CODE, sessions=8))
            async with client.lease(hash_, ResourcesSpec(memory_mb=8192, sessions=8)) as server:
                for code, told in _ATTACKS:
                    async with server.session() as session:
                        await session.reset({}, timeout=SECONDS)
                        text = (await session.step({"command": code}, timeout=SECONDS)).fields["text"]
                        assert text.startswith(told), (code, text)
    finally:
        host.stop()


_BOMB = """
import os, signal, time
pids = []
try:
    for _ in range(1000):
        pid = os.fork()
        if pid == 0:
            time.sleep(30); os._exit(0)
        pids.append(pid)
    result = "never refused"
except OSError as error:
    result = type(error).__name__
finally:
    for pid in pids: os.kill(pid, signal.SIGKILL)
    for pid in pids: os.waitpid(pid, 0)
"""
_ATTACKS = [
    ("result = 6 * 7", "42"),
    ("open('/tmp/mine', 'w').write('kept'); result = open('/tmp/mine').read()", "kept"),
    ("open('/etc/passwd')", "FileNotFoundError"),
    ("open('/package/x', 'w')", "OSError"),
    ("import socket; socket.create_connection(('127.0.0.1', 80), timeout=2)", "OSError: [Errno 101]"),
    ("import os; result = [name for name in os.listdir('/proc') if name.isdigit()]", "['1']"),
    ("import ctypes; result = ctypes.CDLL(None).unshare(0x10000000)", "-1"),
    ("import os; result = os.getuid()", "65534"),
    ("bytearray(16 << 30)", "MemoryError"),
    (_BOMB, "BlockingIOError"),
]


def _become_ordinary_user() -> None:
    """In the child: uid 12345; where root's home hides the interpreter from others, open a way to it alone."""
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    base = get_settings().runtime_python.resolve().parent.parent
    closed = [parent for parent in base.parents if not parent.stat().st_mode & 0o001]
    if closed:
        kept = tempfile.mkdtemp()
        linux.mount(str(base), kept, None, linux.MS_BIND | linux.MS_REC)
        linux.mount("tmpfs", str(closed[-1]), "tmpfs", 0, "mode=755")
        base.mkdir(parents=True)
        linux.mount(kept, str(base), None, linux.MS_BIND | linux.MS_REC)
    os.setgroups([])
    os.setresgid(12345, 12345, 12345)
    os.setresuid(12345, 12345, 12345)


async def test_a_package_that_needs_more_gets_its_own_virtual_environment(folder: Path) -> None:
    wheel = _make_wheel(folder)
    host = start_host(folder / "data", PIP_FIND_LINKS=str(wheel.parent), PIP_NO_INDEX="1")
    try:
        async with EnvHost(host.address) as client:
            files = package_files(
                "needy",
                dependencies=("openenv>=0.10", "tinydependency==1.0"),
                before_app="import tinydependency",
                in_step="import tinydependency\nobservation.text = tinydependency.WORD",
            )
            hash_ = await prepared(client, files)
            async with client.lease(hash_, RESOURCES) as server, server.session() as session:
                await session.reset({}, timeout=SECONDS)
                assert (await session.step({"amount": 1}, timeout=SECONDS)).fields["text"] == "found"
            [built] = (folder / "data" / "environments").glob("*/lib")
            await _wait_for_bytecode(built.parent, "tinydependency")
            missing = package_files("lost", dependencies=("openenv>=0.10", "lost-in-the-woods==1.0"))
            with pytest.raises(SandboxError, match=r"could not be built:\n(.|\n)*lost-in-the-woods"):
                await prepared(client, missing)
            fetched = package_files("fetched", dependencies=("openenv>=0.10", f"tinydependency @ file://{wheel}"))
            with pytest.raises(SandboxError, match="fetched from a URL"):
                await prepared(client, fetched)
    finally:
        host.stop()


async def _wait_for_bytecode(home: Path, module: str) -> None:
    """Compiled for later servers; it does not reveal where the environment is stored."""
    deadline = time.monotonic() + 20
    while not (found := list(home.glob(f"lib/python*/site-packages/__pycache__/{module}.*.pyc"))):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert str(home).encode() not in found[0].read_bytes()


def test_only_files_of_the_environment_are_compiled(folder: Path) -> None:
    home = folder / "home"
    home.mkdir()
    for path in (home / "mine.py", home / "notes.txt", folder / "other.py"):
        path.touch()
    (home / "link.py").symlink_to(folder / "other.py")
    names = ["mine.py", "notes.txt", "link.py", "missing.py", "../other.py", str(folder / "other.py"), "x\nmine.py"]
    assert own_files(home, names) == [home / "mine.py"]


def _make_wheel(folder: Path) -> Path:
    import zipfile

    path = folder / "tinydependency-1.0-py3-none-any.whl"
    home = "tinydependency-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tinydependency.py", "WORD = 'found'\n")
        wheel.writestr(f"{home}/METADATA", "Metadata-Version: 2.1\nName: tinydependency\nVersion: 1.0\n")
        wheel.writestr(f"{home}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        names = ("tinydependency.py", *(f"{home}/{name}" for name in ("METADATA", "WHEEL", "RECORD")))
        wheel.writestr(f"{home}/RECORD", "".join(f"{name},,\n" for name in names))
    return path
