"""One server's failures do not affect runs on others: neighbors in the same runtime, and the host itself."""

import asyncio
import os

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import LimitExceeded, RolloutError
from proctor_sandbox.memory import descendants
from tests.envhost_fixture import HostProcess, package_files, prepared
from workers.environments.client import EnvHost, EnvServer

pytestmark = pytest.mark.slow
RESOURCES = ResourcesSpec(memory_mb=128, sessions=8)
SECONDS = 20.0

HARM = {
    "crash": "import ctypes; ctypes.string_at(0)",
    "exit": "import os; os._exit(0)",
    "signal to everyone": "import os; os.kill(-1, 9)",
    "signal to the process group": "import os; os.kill(0, 9)",
    "leak": "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
    "leak in many processes": "import os, time\nfor _ in range(8):\n"
    "    if os.fork() == 0: kept = b'x' * (60 << 20); time.sleep(60); os._exit(0)\ntime.sleep(5)",
    "fork bomb": "import os\nfor _ in range(100000):\n    try: os.fork()\n    except OSError: pass",
    "full disk": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'wb').write(b'x' * (1 << 20)); n += 1",
    "no inodes": "n = 0\nwhile True:\n    open(f'/tmp/i{n}', 'w').close(); n += 1",
    "no descriptors": "import os\nwhile True: os.dup(1)",
    "flood of output": "import sys\nfor _ in range(3000): sys.stdout.write('x' * 100_000)",
    "busy for ever": "while True: pass",
}


async def _play(server: EnvServer) -> int:
    async with server.session() as session:
        await session.reset({}, timeout=SECONDS)
        return int((await session.step({"amount": 3}, timeout=SECONDS)).fields["total"])


@pytest.mark.parametrize("harm", HARM)
async def test_harm_stays_where_it_is_done(
    env_host: EnvHost, host_process: HostProcess, attacker: str, harm: str
) -> None:
    quiet = await prepared(env_host, package_files("quiet"))
    async with env_host.lease(quiet, RESOURCES) as neighbour, env_host.lease(attacker, RESOURCES) as server:
        assert await _play(neighbour) == 3
        before = [entry["id"] for entry in (await env_host.status())["servers"] if entry["package"] == "quiet"]
        async with neighbour.session() as kept:
            await kept.reset({}, timeout=SECONDS)
            doing = asyncio.create_task(_do(server, HARM[harm]))
            played = [await _play(neighbour) for _ in range(10)]
            await doing
            assert played == [3] * 10
            assert (await kept.step({"amount": 3}, timeout=SECONDS)).fields["total"] == 3
        assert host_process.process.poll() is None
        after = [entry["id"] for entry in (await env_host.status())["servers"] if entry["package"] == "quiet"]
        assert before == after
        assert await _play(server) == 3  # replaced where it died


async def _do(server: EnvServer, code: str) -> None:
    """The step ends, or is given up."""
    try:
        async with server.session() as session:
            await session.reset({}, timeout=SECONDS)
            await session.step({"command": code}, timeout=2)
    except (RolloutError, LimitExceeded):
        pass


@pytest.mark.parametrize("harm", ["os.kill(0, 9)", "os.kill(-1, 9)", "os.fork() or os.kill(os.getppid(), 9)"])
async def test_a_program_does_not_harm_the_server_that_runs_it(env_host: EnvHost, harm: str) -> None:
    in_step = "from proctor_sandbox import execute\nobservation.text = execute(action.command).stdout"
    hash_ = await prepared(env_host, package_files("coder", in_step=in_step, sessions=8))
    resources = ResourcesSpec(memory_mb=512, sessions=8, execute=True)
    async with env_host.lease(hash_, resources) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        for command, told in ((f"import os; {harm}", ""), ("print(6 * 7)", "42\n")):
            answer = await session.step({"command": command, "amount": 0}, timeout=SECONDS)
            assert answer.fields["text"] == told


async def test_a_server_runs_programs_only_when_its_manifest_asks(env_host: EnvHost) -> None:
    in_step = "from proctor_sandbox import execute\nobservation.text = execute(action.command).stdout"
    hash_ = await prepared(env_host, package_files("quietly", in_step=in_step, sessions=8))
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        with pytest.raises(RolloutError, match="execute: true"):
            await session.step({"command": "print(1)"}, timeout=SECONDS)


async def test_a_server_cannot_see_what_runs_its_programs(env_host: EnvHost) -> None:
    look = "import os; result = [name for name in os.listdir('/proc') if name.isdigit()]"
    in_step = (
        "from proctor_sandbox import execute\nexecute('print(1)')\nimport ctypes\nscope = {}\n"
        "exec(action.command, scope)\n"
        "observation.text = str((scope['result'], ctypes.CDLL(None).unshare(0x10000000)))"
    )
    hash_ = await prepared(env_host, package_files("curious", in_step=in_step, sessions=8))
    resources = ResourcesSpec(memory_mb=256, sessions=8, execute=True)
    async with env_host.lease(hash_, resources) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        assert (await session.step({"command": look}, timeout=SECONDS)).fields["text"] == "(['1'], -1)"


async def test_programs_end_with_their_server(env_host: EnvHost, host_process: HostProcess) -> None:
    in_step = (
        "import threading\nfrom proctor_sandbox import Limits, execute\n"
        "threading.Thread(target=execute, args=('import time; time.sleep(300)',), "
        "kwargs={'limits': Limits(seconds=300)}).start()\nimport time; time.sleep(0.5)\nimport os; os._exit(3)"
    )
    hash_ = await prepared(env_host, package_files("leaving", in_step=in_step, sessions=8))
    before = _namespaces(host_process)
    resources = ResourcesSpec(memory_mb=256, sessions=8, execute=True)
    async with env_host.lease(hash_, resources) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        with pytest.raises(RolloutError):
            await session.step({"amount": 1}, timeout=SECONDS)
    for _ in range(100):
        if _namespaces(host_process) <= before:
            break
        await asyncio.sleep(0.1)
    assert _namespaces(host_process) <= before


def _namespaces(host: HostProcess) -> set[str]:
    """The process namespaces of all processes of this host."""
    found = set()
    for pid in descendants(host.process.pid):
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/pid"))
        except OSError:
            continue
    return found
