"""Sessions that share a connection behave as sessions with a connection each."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import RolloutError
from tests.envhost_fixture import package_files, prepared
from workers.environments.client import EnvHost, EnvServer, _LeasedProcess
from workers.environments.inside.shared_connection import (
    HEADER,
    PROTOCOL,
    TOO_LARGE,
    join_messages,
    runs_in_any_thread,
    split_messages,
)
from workers.environments.wire import Channel, DeadlinePassed, PlainChannel, ServerIsGone, SharedChannel, SharedSocket

RESOURCES = ResourcesSpec(memory_mb=256, sessions=64)
SECONDS = 10.0
MESSAGES = (
    b'{"type":"state"}',
    b'{"type":"reset","data":{"seed":3,"episode_id":"one","level":2}}',
    b'{"type":"step","data":{"amount":1}}',
    b'{"type":"step","data":{"amount":"many"}}',
    b'{"type":"step","data":{"unknown":1}}',
    b'{"type":"step","data":{"amount":1},"more":1}',
    b'{"type":"step","data":{"command":"raise"}}',
    b'{"type":"step","data":{"command":"nan reward"}}',
    b'{"type":"step"}',
    b'{"type":"reset","data":7}',
    b'{"type":"nope"}',
    b"{",
    '{"type":"reset","data":{"level":"ü€"}}'.encode(),
    b'{"type":"state"}',
    b"[1]",
)


async def _answers(channel: Channel, messages: tuple[bytes, ...]) -> list[object]:
    """The answers in their order, without what differs between any two sessions."""
    received = [await asyncio.wait_for(channel.ask(message, "test"), SECONDS) for message in messages]
    texts = [each if isinstance(each, str) else each.decode() for each in received]
    return [orjson.loads(re.sub(r"[0-9a-f-]{36}", "", text)) for text in texts]


async def _plain(server: EnvServer) -> PlainChannel:
    process = server._processes[0]
    return PlainChannel(await process._http.ws_connect(process._url, compress=0))


@pytest.mark.parametrize("is_quick", [True, False])
async def test_each_answer_equals_the_one_of_the_plain_wire(env_host: EnvHost, is_quick: bool) -> None:
    step = "if action.command == 'raise': raise ValueError('bad move')"
    step += "\nif action.command: observation.reward = float('nan')"
    files = package_files("alike", in_step=step, before_app="" if is_quick else "import sqlite3")
    hash_ = await prepared(env_host, files)
    async with env_host.lease(hash_, RESOURCES) as server:
        plain = await _plain(server)
        expected = await _answers(plain, MESSAGES)
        await plain.close()
        wire = await server._processes[0].connect()
        assert isinstance(wire._channel, SharedChannel)
        assert await _answers(wire._channel, MESSAGES) == expected
        with pytest.raises(ServerIsGone, match="closed the session"):
            await asyncio.wait_for(wire._channel.ask(MESSAGES[0], "test"), SECONDS)


async def test_environments_with_coroutines_keep_the_plain_wire(env_host: EnvHost) -> None:
    files = package_files("coroutines")
    path = "server/counter_environment.py"
    step = "    async def step_async(self, action, timeout_s=None, **arguments):\n        return self.step(action)\n\n"
    files[path] = files[path].replace("    @property", f"{step}    @property")
    hash_ = await prepared(env_host, files)
    async with env_host.lease(hash_, RESOURCES) as server, server.session() as session:
        assert isinstance(session.wire._channel, PlainChannel)
        await session.reset({}, timeout=SECONDS)
        assert (await session.step({"amount": 2}, timeout=SECONDS)).fields["total"] == 2


async def test_a_session_that_hangs_holds_up_no_other(env_host: EnvHost) -> None:
    step = "if action.command == 'hang':\n    import time\n    time.sleep(action.amount)"
    hash_ = await prepared(env_host, package_files("hanging", in_step=step))
    async with env_host.lease(hash_, RESOURCES) as server:
        process = server._processes[0]
        wires = [await process.connect() for _ in range(4)]
        for wire in wires:
            await wire.observe("reset", {}, SECONDS)
            await wire.observe("step", {"amount": 0}, SECONDS)  # from now on they are answered in one thread
        hanging = asyncio.create_task(wires[0].observe("step", {"command": "hang", "amount": 2}, 0.5))
        for _ in range(20):
            await asyncio.gather(*(wire.observe("step", {"amount": 0}, SECONDS) for wire in wires[1:]))
        assert not hanging.done()
        with pytest.raises(DeadlinePassed):
            await hanging
        assert not wires[0].is_open
        await asyncio.gather(*(wire.observe("step", {"amount": 0}, SECONDS) for wire in wires[1:]))
        for wire in wires:
            await wire.close()


async def test_a_lost_connection_fails_its_sessions_and_is_opened_again(env_host: EnvHost) -> None:
    hash_ = await prepared(env_host, package_files())
    async with env_host.lease(hash_, RESOURCES) as server:
        process: _LeasedProcess = server._processes[0]
        lost = await process.connect()
        await lost.observe("reset", {}, SECONDS)
        assert process._shared is not None
        await process._shared._socket.close()
        with pytest.raises(ServerIsGone):
            await lost.observe("step", {}, SECONDS)
        again = await process.connect()
        await again.observe("reset", {}, SECONDS)
        await again.close()


@pytest_asyncio.fixture
async def hostile(tmp_path: Path) -> AsyncIterator[SharedSocket]:
    """A connection to a server that sends the frames in a message."""

    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        async for frame in socket:
            for _, message in split_messages(frame.data):
                await socket.send_bytes(bytes.fromhex((message or b"").decode()))
        return socket

    app = web.Application()
    app.add_routes([web.get("/ws", echo)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "s"))) as http:
        socket = SharedSocket(await http.ws_connect("ws://server/ws", protocols=(PROTOCOL,)))
        yield socket
        await socket.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (HEADER.pack(0, 5) + b"abc", "longer than its frame"),
        (HEADER.pack(0, 2**31) + b"abc", "longer than its frame"),
        (b"\x00\x00\x00", "ends within a header"),
        (HEADER.pack(0, 0), "closed the session"),
        (HEADER.pack(0, TOO_LARGE), "larger than"),
    ],
)
async def test_hostile_frames_are_errors(hostile: SharedSocket, sent: bytes, problem: str) -> None:
    with pytest.raises(RolloutError, match=problem):
        await asyncio.wait_for(SharedChannel(hostile).ask(sent.hex().encode(), "test"), SECONDS)


async def test_answers_to_sessions_that_do_not_wait_are_ignored(hostile: SharedSocket) -> None:
    frame = b"".join(join_messages([(7, b"late"), (0, b"mine")]))
    assert await asyncio.wait_for(SharedChannel(hostile).ask(frame.hex().encode(), "test"), SECONDS) == b"mine"


def test_messages_are_split_into_frames_that_are_not_too_large() -> None:
    messages = [(1, b"a" * 40), (2, b"b" * 40), (3, b"c" * 93), (1, b""), (2, b"d" * 92)]
    frames = list(join_messages(messages, 100))
    assert max(map(len, frames)) <= 100
    assert [message for frame in frames for message in split_messages(frame)] == [
        *messages[:2],
        (3, None),
        *messages[3:],
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import json, random\nfrom pydantic import BaseModel\nfrom .words import WORDS\nimport words", True),
        ("import json, sqlite3", False),
        ("def f():\n    from playwright.sync_api import sync_playwright", False),
        ("exec(code)", False),
        ("import", False),
    ],
)
def test_only_packages_without_threads_share_one(tmp_path: Path, code: str, expected: bool) -> None:
    (tmp_path / "words.py").write_text("WORDS = []")
    (tmp_path / "game.py").write_text(code)
    assert runs_in_any_thread(str(tmp_path)) is expected
