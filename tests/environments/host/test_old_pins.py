"""A package that pins an old FastAPI, pydantic or OpenEnv gets a separate virtual environment, and plays."""

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from tests.envhost_fixture import HostProcess, package_files, prepared
from workers.environments.client import EnvHost

RESOURCES = ResourcesSpec(memory_mb=512, sessions=64)
PINS = {"openenv-core": "0.2.0", "fastapi": "0.116.1", "pydantic": "2.11.9"}
TELL = "from importlib.metadata import version\nobservation.data = {{name: version(name) for name in {names}}}"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_old_pins_are_kept(env_host: EnvHost, host_process: HostProcess) -> None:
    dependencies = [f"{name}=={version}" for name, version in PINS.items()]
    files = package_files("pinned", in_step=TELL.format(names=list(PINS)), dependencies=tuple(dependencies))
    hash_ = await prepared(env_host, files)
    log, is_own = await env_host.build_log(hash_)
    assert is_own, log
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=20)
        first = await session.step({"amount": 1}, timeout=20)
        assert first.fields["data"] == PINS
        assert (await session.step({"amount": 2}, timeout=20)).done
    assert list((host_process.data / "environments").glob("*/stands-alone"))
