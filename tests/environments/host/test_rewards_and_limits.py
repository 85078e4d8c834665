"""Limits of an environment's answers: finite rewards, bounded frames, deadlines."""

import time

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import EnvError, LimitExceeded, SandboxError
from workers.environments.client import EnvHost, Observation

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 10.0


async def _step(host: EnvHost, hash_: str, command: str, timeout: float = SECONDS) -> Observation:
    async with host.lease(hash_, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        return await session.step({"amount": 1, "command": command}, timeout=timeout)


async def test_a_package_that_sends_only_the_scalar_gets_the_column_reward(env_host: EnvHost, misbehaving: str) -> None:
    assert (await _step(env_host, misbehaving, "scalar")).rewards == {"reward": 1.0}


async def test_a_scalar_that_is_not_a_number_arrives_as_no_reward(env_host: EnvHost, misbehaving: str) -> None:
    observation = await _step(env_host, misbehaving, "nan reward")
    assert (observation.reward, observation.rewards) == (None, {})


@pytest.mark.parametrize("command", ["nan column", "text column", "list of columns"])
async def test_a_column_that_is_not_a_finite_number_is_an_error(
    env_host: EnvHost, misbehaving: str, command: str
) -> None:
    with pytest.raises(EnvError, match=r"gain|metadata.rewards"):
        await _step(env_host, misbehaving, command)


async def test_a_huge_observation_is_refused(env_host: EnvHost, misbehaving: str) -> None:
    with pytest.raises(LimitExceeded, match="larger than 8,000,000 bytes"):
        await _step(env_host, misbehaving, "huge")


async def test_a_large_observation_is_not(env_host: EnvHost, misbehaving: str) -> None:
    assert len((await _step(env_host, misbehaving, "large")).fields["text"]) == 5_000_000


async def test_a_megabyte_on_the_log_does_no_harm(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        observation = await session.step({"amount": 1, "command": "print"}, timeout=SECONDS)
        assert observation.fields["total"] == 1


@pytest.mark.parametrize("command", ["sleep", "spin"])
async def test_a_step_that_does_not_end_meets_its_deadline_and_its_server_is_replaced(
    env_host: EnvHost, misbehaving: str, command: str
) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server:
        async with server.session() as session:
            await session.reset({}, timeout=SECONDS)
            begun = time.monotonic()
            with pytest.raises(LimitExceeded, match=r"no answer within 0.3 s"):
                await session.step({"command": command}, timeout=0.3)
            assert time.monotonic() - begun < 2.0
            first = session._process.id
            with pytest.raises(SandboxError, match="broken"):
                await session.step({"amount": 1}, timeout=SECONDS)
        async with server.session() as session:
            assert session._process.id != first
            await session.reset({}, timeout=SECONDS)
            assert (await session.step({"amount": 1}, timeout=SECONDS)).fields["total"] == 1
