"""Every error code of OpenEnv's wire, from the real server, becomes an error of the right kind."""

import asyncio

import pytest

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import ActionRefused, EnvError, LimitExceeded, SandboxError
from tests.envhost_fixture import package_files, prepared
from workers.environments.client import EnvHost, EnvServer, EnvSession
from workers.environments.wire import ServerIsFull, Wire

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 10.0


async def _send(wire: Wire, frame: bytes) -> None:
    await wire.exchange(frame, "observation", "test", SECONDS)


async def test_a_frame_that_is_not_json_is_an_environment_error(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        with pytest.raises(EnvError, match="INVALID_JSON"):
            await _send(session.wire, b"{")


async def test_an_unknown_frame_is_an_environment_error(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        with pytest.raises(EnvError, match="UNKNOWN_TYPE"):
            await _send(session.wire, b'{"type":"nope"}')


async def test_a_frame_that_is_no_object_ends_the_session(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        with pytest.raises(SandboxError, match="SESSION_ERROR"):
            await _send(session.wire, b"[1]")
        assert not session.wire.is_open


async def test_an_action_of_the_wrong_form_is_refused_and_the_episode_continues(
    env_host: EnvHost, misbehaving: str
) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        with pytest.raises(ActionRefused, match="amount"):
            await session.step({"amount": "many"}, timeout=SECONDS)
        with pytest.raises(ActionRefused, match="unknown"):
            await session.step({"unknown": 1}, timeout=SECONDS)
        assert (await session.step({"amount": 1}, timeout=SECONDS)).fields["total"] == 1


async def test_an_exception_in_a_step_is_an_environment_error(env_host: EnvHost, misbehaving: str) -> None:
    async with env_host.lease(misbehaving, RESOURCES) as server, server.session() as session:
        await session.reset({}, timeout=SECONDS)
        with pytest.raises(EnvError, match=r"step: bad move \(EXECUTION_ERROR\)"):
            await session.step({"command": "raise"}, timeout=SECONDS)


async def test_an_exception_in_reset_is_an_environment_error(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files(in_reset="raise KeyError('board')"))
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        with pytest.raises(EnvError, match=r"reset: 'board' \(EXECUTION_ERROR\)"):
            await session.reset({}, timeout=SECONDS)


async def test_an_environment_that_cannot_be_created_is_an_environment_error(env_host: EnvHost) -> None:
    files = package_files()
    path = "server/counter_environment.py"
    files[path] = files[path].replace("super().__init__()", "raise OSError('no data')")
    hash_ = await prepared(env_host, files)
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        with pytest.raises(EnvError, match="FACTORY_ERROR"):
            await session.reset({}, timeout=SECONDS)


async def test_a_full_server_says_so(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files(limit=1))
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        assert server.sessions == 1
        await session.reset({}, timeout=SECONDS)
        beyond = await session._process.connect()
        with pytest.raises(ServerIsFull, match="1/1 sessions"):
            await beyond.observe("reset", {}, SECONDS)
        await beyond.close()


async def test_a_session_waits_for_a_full_server(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files(limit=1))
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as holder:
        await holder.reset({}, timeout=SECONDS)
        late = EnvSession(holder._process, await holder._process.connect())
        waiting = asyncio.create_task(late.reset({"seed": 5}, timeout=SECONDS))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await holder.wire.close()
        assert (await waiting).fields["seed"] == 5
        await late.wire.close()


async def test_waiting_for_a_full_server_ends_with_the_deadline(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files(limit=1))
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as holder:
        await holder.reset({}, timeout=SECONDS)
        late = EnvSession(holder._process, await holder._process.connect())
        with pytest.raises(LimitExceeded, match="no free session"):
            await late.reset({}, timeout=0.3)
        await late.wire.close()


async def test_one_session_at_a_time_is_what_such_a_package_gets(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files(limit=1))
    async with env_host.lease(hash_, RESOURCES, servers=2) as server:
        assert server.sessions == 2
        totals = await asyncio.gather(*(_play(server) for _ in range(6)))
    assert totals == [3] * 6


async def _play(server: EnvServer) -> int:
    async with server.session() as session:
        await session.reset({}, timeout=SECONDS)
        return int((await session.step({"amount": 3}, timeout=SECONDS)).fields["total"])
