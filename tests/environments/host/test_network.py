"""Network access: only servers that an administrator granted, within the limits of the machine's operator."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.environments.manifest import NetworkSpec, ResourcesSpec
from backend.domain.environments.packages import content_hash
from backend.domain.errors import SandboxError
from tests.envhost_fixture import HostProcess, package_files, prepared, start_host
from workers.environments.client import EnvHost

SECONDS = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pn-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


_CONNECT = """
import socket
try:
    socket.create_connection(("127.0.0.1", int(action.command)), timeout=2).close()
    observation.text = "reached"
except OSError as error:
    observation.text = str(error)
"""


def _asking(name: str) -> tuple[dict[str, str], ResourcesSpec]:
    """A package that asks for the network, and what its servers are ordered with."""
    files = package_files(name, in_step=_CONNECT)
    files["openenv.yaml"] = files["openenv.yaml"].replace(
        "sessions: 64", "sessions: 64, network: {hosts: [example.org]}"
    )
    return files, ResourcesSpec(memory_mb=256, sessions=64, network=NetworkSpec(hosts=["example.org"]))


async def _reached(client: EnvHost, hash_: str, resources: ResourcesSpec) -> str:
    """The output of a server that connects to this machine's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with client.lease(hash_, resources) as server, server.session() as session:
            await session.reset({}, timeout=SECONDS)
            answer = await session.step({"command": str(listener.getsockname()[1])}, timeout=SECONDS)
            return str(answer.fields["text"])


@pytest.mark.slow
async def test_a_network_is_there_while_an_administrator_grants_it(host_process: HostProcess) -> None:
    (files, resources), granted = _asking("talker"), set[str]()
    async with EnvHost(host_process.address, is_granted=granted.__contains__) as client:
        with pytest.raises(SandboxError, match=r"requests network access \(example.org\).*`proctor env grant`"):
            await prepared(client, files)
        granted.add(hash_ := content_hash(files))
        await prepared(client, files)
        assert await _reached(client, hash_, resources) == "reached"
        granted.clear()  # a server of it is still warm
        with pytest.raises(SandboxError, match=r"no administrator has granted it"):
            await _reached(client, hash_, resources)
        quiet = await prepared(client, package_files("quiet", in_step=_CONNECT))
        assert (await _reached(client, quiet, ResourcesSpec(memory_mb=256, sessions=64))).startswith("[Errno 101]")
        with pytest.raises(SandboxError, match=r"no administrator has granted it"):  # ordered past its own manifest
            await _reached(client, quiet, resources)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["none", "its hash"])
async def test_the_operator_of_the_machine_has_the_last_word(folder: Path, setting: str) -> None:
    files, resources = _asking("talker")
    hash_ = content_hash(files)
    allowed = f"{'0' * 64}, {hash_}" if setting == "its hash" else setting
    host = await asyncio.to_thread(start_host, folder / "host", PROCTOR_ALLOW_NETWORK=allowed)
    try:
        async with EnvHost(host.address, is_granted=lambda _: setting == "none") as client:
            if setting == "none":
                with pytest.raises(SandboxError, match="closed on this machine"):
                    await prepared(client, files)
            else:
                await prepared(client, files)
                assert await _reached(client, hash_, resources) == "reached"
    finally:
        host.stop()
