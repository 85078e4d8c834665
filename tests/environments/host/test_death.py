"""Servers that die are noticed, explained and replaced."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError
from tests.envhost_fixture import HostProcess, package_files, prepared
from workers.environments.client import EnvHost, HostRefused

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 10.0


async def test_a_server_that_dies_in_an_episode_is_explained_and_replaced(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server:
        async with server.session() as session:
            await session.reset({}, timeout=SECONDS)
            with pytest.raises(SandboxError, match="the server ended with exit code 3"):
                await session.step({"command": "exit"}, timeout=SECONDS)
        async with server.session() as session:
            await session.reset({}, timeout=SECONDS)
            assert (await session.step({"amount": 3}, timeout=SECONDS)).done


async def test_a_dead_server_is_not_leased_again(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        with pytest.raises(SandboxError):
            await session.step({"command": "exit"}, timeout=SECONDS)
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        assert not (await session.reset({}, timeout=SECONDS)).done


async def test_a_worn_server_is_not_leased_again(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        worn = session._process.id
        await session.reset({}, timeout=SECONDS)
        with pytest.raises(Exception, match="no answer"):
            await session.step({"command": "spin"}, timeout=0.2)
    assert worn not in {server["id"] for server in (await env_host.status())["servers"]}


async def test_a_session_that_was_cancelled_in_the_middle_is_not_used_again(
    env_host: EnvHost, misbehaving: str
) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server:
        async with server.session() as session:
            wire = session.wire
            await session.reset({}, timeout=SECONDS)
            step = asyncio.create_task(session.step({"command": "sleep"}, timeout=SECONDS))
            await asyncio.sleep(0.1)
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        async with server.session() as session:
            assert session.wire is not wire


@pytest.mark.slow
async def test_the_warm_interpreter_is_started_again_when_it_died(env_host: EnvHost, host_process: HostProcess) -> None:
    hash_ = await prepared(env_host, package_files())
    for child in _children(host_process.process.pid):
        os.kill(child, signal.SIGKILL)
    await asyncio.sleep(0.2)
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        assert not (await session.reset({}, timeout=SECONDS)).done


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_lease_that_was_given_back_is_over(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    lease = await env_host.request("POST", "/servers", json={"hash": hash_, "resources": RESOURCES.model_dump()})
    assert any(server["is_leased"] for server in (await env_host.status())["servers"])
    await env_host.request("DELETE", f"/leases/{lease['id']}")
    with pytest.raises(HostRefused, match="this lease has ended"):
        await env_host.request("GET", f"/leases/{lease['id']}/hold", seconds=None)
