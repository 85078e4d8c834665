"""A package that does not start is reported with the end of its log and affects nothing else."""

import asyncio
import time

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.environments.packages import content_hash, pack
from backend.domain.errors import SandboxError
from tests.envhost_fixture import HostProcess, package_files, prepared
from workers.environments.client import EnvHost

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 10.0
FLOOD = """
import os, threading
def flood():
    while True: os.write(1, b"x" * 65536)
threading.Thread(target=flood, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("def (:", r'File "/package/counter/server/app.py", line 1(.|\n)*SyntaxError'),
        ("print('good', 'bye'); raise SystemExit(3)", r"exit code 3 while it started\ngood bye"),
        ("import os; os._exit(0)", "exit code 0 while it started"),
        ("import os; os.kill(os.getpid(), 11); import ctypes; ctypes.string_at(0)", "ended by signal 11"),
    ],
)
async def test_a_package_that_does_not_start_is_reported_why(env_host: EnvHost, code: str, told: str) -> None:
    with pytest.raises(SandboxError, match=told):
        await prepared(env_host, package_files(before_app=code))


async def test_an_app_that_is_missing_is_reported(env_host: EnvHost) -> None:
    files = package_files()
    files["openenv.yaml"] = files["openenv.yaml"].replace("server.app:app", "server.app:application")
    with pytest.raises(SandboxError, match="has no attribute 'application'"):
        await prepared(env_host, files)


async def test_an_app_that_does_not_speak_openenv_is_reported(env_host: EnvHost) -> None:
    files = package_files() | {"server/app.py": "from fastapi import FastAPI\napp = FastAPI()\n"}
    with pytest.raises(SandboxError, match="does not speak OpenEnv: GET /schema answered 404"):
        await prepared(env_host, files)


async def test_a_package_that_floods_its_log_at_the_start_still_starts(
    env_host: EnvHost, host_process: HostProcess
) -> None:
    flood = "for _ in range(20): print('x' * 100_000)"
    hash_ = await prepared(env_host, package_files(before_app=flood))
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        assert not (await session.reset({}, timeout=SECONDS)).done
    assert host_process.log.stat().st_size < 100_000


async def test_a_package_that_prints_for_ever_does_not_fill_the_disk_or_block_the_host(
    env_host: EnvHost, host_process: HostProcess
) -> None:
    hash_ = await prepared(env_host, package_files(before_app=FLOOD))
    before = _bytes_on_disk(host_process)
    async with env_host.lease(hash_, RESOURCES):
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        await env_host.status()
        assert time.monotonic() - begun < 1.0
        assert _bytes_on_disk(host_process) - before < 1_000_000


def _bytes_on_disk(host: HostProcess) -> int:
    return sum(path.stat().st_size for path in host.data.rglob("*") if path.is_file())


async def test_files_of_another_hash_are_refused(env_host: EnvHost) -> None:
    files = package_files()
    with pytest.raises(SandboxError, match="do not have this hash"):
        await env_host.prepare(content_hash(files | {"more.txt": ""}), files)


async def test_a_zip_that_climbs_out_is_refused(env_host: EnvHost) -> None:
    files = package_files() | {"../outside.py": "x = 1"}
    with pytest.raises(SandboxError, match="not a plain relative path"):
        await env_host.request("PUT", f"/packages/{content_hash(files)}", body=pack(files))


async def test_an_unknown_package_cannot_be_leased(env_host: EnvHost) -> None:
    with pytest.raises(SandboxError, match="does not have the package"):
        async with env_host.lease("0" * 64, RESOURCES):
            pass


async def test_more_than_the_machine_has_is_refused_at_once(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    with pytest.raises(SandboxError, match="will never fit"):
        async with env_host.lease(hash_, ResourcesSpec(memory_mb=65536), servers=64):
            pass


async def test_a_package_that_runs_from_its_parent_folder_is_served(env_host: EnvHost) -> None:
    files = package_files("nested")
    for path in ("server/app.py", "server/counter_environment.py"):
        files[path] = files[path].replace("from models", "from ..models").replace("from server.", "from .")
    hash_ = await prepared(env_host, files)
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        assert not (await session.reset({}, timeout=SECONDS)).done
