"""An episode over the wire, from lease to the last step."""

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import EnvError
from tests.envhost_fixture import package_files, prepared
from workers.environments.client import EnvHost, EnvServer

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 10.0


async def test_an_episode_is_played_to_its_end(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        first = await session.reset({"seed": 3, "level": 2}, timeout=SECONDS)
        second = await session.step({"amount": 1}, timeout=SECONDS)
        last = await session.step({"amount": 2}, timeout=SECONDS)
    assert (first.fields["seed"], first.fields["text"], first.done) == (3, "start 2", False)
    assert second.rewards == {"gain": 1.0, "tidy": 0.5}
    assert (last.fields["total"], last.done, last.reward) == (3, True, 2.0)


async def test_a_leased_server_shows_what_it_takes(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server:
        assert "amount" in server.action_schema["properties"]
        assert "total" in server.observation_schema["properties"]
        assert server.sessions == 64


async def test_the_state_holds_the_scripts(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        state = await session.state(timeout=SECONDS)
    assert state["scripts"] == {"gold": "3"}


async def test_it_refuses_a_step_before_the_reset_and_after_the_end(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        with pytest.raises(EnvError, match="reset first"):
            await session.step({"amount": 1}, timeout=SECONDS)
        await session.reset({}, timeout=SECONDS)
        await session.step({"amount": 3}, timeout=SECONDS)
        with pytest.raises(EnvError, match="has ended"):
            await session.step({"amount": 1}, timeout=SECONDS)


async def test_concurrent_sessions_do_not_see_each_other(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as one, server.session() as other:
        await one.reset({}, timeout=SECONDS)
        await other.reset({}, timeout=SECONDS)
        await one.step({"amount": 2}, timeout=SECONDS)
        assert (await other.step({"amount": 1}, timeout=SECONDS)).fields["total"] == 1


async def test_a_socket_is_used_again_after_an_episode_that_ended_well(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server:
        wires = [await _wire_after_episode(server) for _ in range(2)]
    assert wires[0] is wires[1]


async def _wire_after_episode(server: EnvServer) -> object:
    async with server.session() as session:
        await session.reset({}, timeout=SECONDS)
        await session.step({"amount": 3}, timeout=SECONDS)
        return session.wire
