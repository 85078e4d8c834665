"""An environment's server is foreign code: whatever it sends fails its own episode, and no other."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from tests.rollouts.world import SCHEMA, Replies, make_manifest, plans, play
from workers.environments.client import EnvServer
from workers.rollouts import engine

GOOD = {"observation": {"total": 1, "target": 1, "legal": [1, 2]}, "reward": None, "done": True}
GOOD["metadata"] = {"rewards": {"win": 1.0}}
OPENING = {"type": "observation", "data": {**GOOD, "done": False, "metadata": {}}}


def _answer(**changes: Any) -> str:
    return json.dumps({"type": "observation", "data": {**GOOD, **changes}})


def _observed(**fields: Any) -> str:
    return _answer(observation={**GOOD["observation"], **fields})  # type: ignore[dict-item]


def _problem(**fields: Any) -> str:
    return json.dumps({"type": "error", "data": fields})


def _nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


def _deep(field: str, depth: int) -> str:
    return _answer(**{field: "?"}).replace('"?"', _nested(depth))


WRONG: tuple[Any, ...] = (None, True, 7, -1.5, 2**63, 2**64, 10**30, 1e308, "yes", "\x00", [], [1], {}, {"a": []})
HOSTILE: dict[str, str | bytes] = {
    # errors
    "error code list": _problem(code=["CAPACITY_REACHED"], message="x"),
    "error code object": _problem(code={"a": 1}, message="x"),
    "error message object": _problem(code="EXECUTION_ERROR", message={"a": [1]}),
    "error location null": _problem(code="VALIDATION_ERROR", message="m", errors=[{"loc": None, "msg": "x"}]),
    "error location number": _problem(code="VALIDATION_ERROR", message="m", errors=[{"loc": 5, "msg": 5}]),
    "error location object": _problem(code="VALIDATION_ERROR", message="m", errors=[{"loc": {"a": 1}, "msg": {}}]),
    "error list": json.dumps({"type": "error", "data": ["x"]}),
    # rewards
    "reward text": _answer(reward="a lot"),
    "reward list": _answer(reward=[1.0]),
    "reward 1e400": _answer(reward="?").replace('"?"', "1e400"),
    "reward NaN": _answer(reward="?").replace('"?"', "NaN"),
    "reward 5,000 digits": _answer(reward="?").replace('"?"', "9" * 5000),
    "column beyond the database": _answer(metadata={"rewards": {"win": 1.7e308}}),
    "column list": _answer(metadata={"rewards": {"win": [1]}}),
    "columns list": _answer(metadata={"rewards": [1]}),
    "columns without end": _answer(metadata={"rewards": {f"c{n}": 1.0 for n in range(5000)}}),
    # other fields
    "done text": _answer(done="yes"),
    "done number": _answer(done=1),
    "observation list": _answer(observation=[1]),
    "metadata list": _answer(metadata=[1]),
    # frames
    "deep observation": _observed(deep="?").replace('"?"', _nested(1000)),
    "observation nested too deep": _observed(deep="?").replace('"?"', _nested(260)),
    "deep reward": _deep("reward", 1000),
    "deep metadata": _deep("metadata", 1000),
    "deep done": _deep("done", 1000),
    "deep column": _answer(metadata={"rewards": {"win": "?"}}).replace('"?"', _nested(990)),
    "deep type": json.dumps({"type": "?", "data": {}}).replace('"?"', _nested(1000)),
    "deep frame": _nested(1000),
    "very deep frame": _nested(100_000),
    "very deep objects": _nested(100_000, '{"a":', "}"),
    "list frame": "[1]",
    "number frame": "12",
    "empty frame": "",
    "lone surrogate": _observed(text="?").replace('"?"', '"\\ud800"'),
    "binary frame": _answer().encode(),
    "invalid UTF-8": b"\xff\xfe{}",
    "too large": _observed(text="x" * 9_000_000),
    "another type": json.dumps({"type": "state", "data": {}}),
}
HOSTILE |= {f"{field} {value!r}": json.dumps({"type": value, "data": GOOD}) for field in ("type",) for value in WRONG}
HOSTILE |= {f"data {value!r}": json.dumps({"type": "observation", "data": value}) for value in WRONG}
HARMLESS: dict[str, str] = {
    "as it should be": _answer(),
    "NUL": _observed(text="a\x00b"),
    "huge whole number": _observed(number=2**64 - 1),
    "larger than 64 bits": _observed(number=10**30),
    "same key twice": _answer().replace('"reward": null', '"reward": null, "reward": null'),
    "reward as a truth value": _answer(reward=True),
    "nested as deep as allowed": _observed(deep="?").replace('"?"', _nested(240)),
}


class _Host:
    """Leads a lease to a server of the test, as the env host leads it to a package's."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def request(self, method: str, path: str, *, json: Any = None, seconds: float = 0.0) -> dict[str, Any]:
        if path.endswith("/hold"):
            await asyncio.sleep(60)
        return {"id": "again", "exit_reason": "", "log": "", "sessions": 64, "servers": []}

    def reach(self, server: dict[str, Any]) -> tuple[aiohttp.ClientSession, str]:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)), self.url


@asynccontextmanager
async def _leased(host: _Host, described: dict[str, Any]) -> AsyncIterator[EnvServer]:
    server = EnvServer(host, {})
    server.connect_to([described])
    try:
        yield server
    finally:
        await server.release()


@asynccontextmanager
async def _peer(answers: list[str | bytes], schema: Any = SCHEMA, on_reset: bool = False) -> AsyncIterator[EnvServer]:
    """A server that answers the step of task `n` (or its reset) with `answers[n]`, and all other frames properly."""

    async def speak(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        task = 0
        async for message in socket:
            frame = json.loads(message.data)
            is_reset = frame["type"] == "reset"
            task = frame["data"]["index"] if is_reset else task
            answer = answers[task] if frame["type"] == ("reset" if on_reset else "step") else json.dumps(OPENING)
            await (socket.send_bytes(answer) if isinstance(answer, bytes) else socket.send_str(answer))
        return socket

    application = web.Application()
    application.add_routes([web.get("/ws", speak)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    described = {"id": "1", "sessions": 64, "action_schema": schema, "observation_schema": {}}
    try:
        async with _leased(_Host(f"http://127.0.0.1:{port}/ws"), described) as server:
            yield server
    finally:
        await runner.cleanup()


async def _played(server: EnvServer, tasks: int, reply: str = "<move>1</move>", **manifest: Any) -> list[Rollout]:
    spec = make_manifest(
        episode={"max_turns": 2, "step_timeout_seconds": 20, "episode_timeout_seconds": 30}, **manifest
    )
    return await play(server, Replies(reply), plans(tasks), spec)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RETRY_SECONDS", 0.001)


ONLY_IN_STEPS = ("error location", "column")
"""Frames that are read in the same way as the answer to a reset."""


@pytest.mark.parametrize(
    ("name", "on_reset"),
    [
        pytest.param(name, on_reset, id=f"{'reset' if on_reset else 'step'}-{name}")
        for on_reset in (False, True)
        for name in HOSTILE
        if not (on_reset and name.startswith(ONLY_IN_STEPS))
    ],
)
async def test_a_hostile_frame_fails_its_own_episode_and_no_other(name: str, on_reset: bool) -> None:
    good = json.dumps(OPENING) if on_reset else _answer()
    async with _peer([good, HOSTILE[name], good, good], on_reset=on_reset) as server:
        first, hostile, *others = await _played(server, 4)
    assert all(rollout.is_completed for rollout in (first, *others)), [each.error_message for each in (first, *others)]
    if name.startswith("error location") and not on_reset:  # the action was refused: the policy's mistake
        assert hostile.is_completed
        assert hostile.steps[-1].note
        return
    assert hostile.status is RolloutStatus.FAILED
    assert hostile.reward is None
    assert hostile.error_kind in {ErrorKind.ENVIRONMENT, ErrorKind.LIMIT, ErrorKind.SANDBOX}
    assert hostile.error_message
    assert len(hostile.error_message) < 3000


@pytest.mark.parametrize("name", HARMLESS)
async def test_an_unusual_frame_that_says_something_is_read(name: str) -> None:
    async with _peer([HARMLESS[name]]) as server:
        [rollout] = await _played(server, 1)
    assert rollout.is_completed, rollout.error_message
    assert rollout.columns["win"] == 1.0


async def test_rewards_whose_sum_is_beyond_all_numbers_fail_the_episode() -> None:
    async with _peer([_answer(metadata={"rewards": {"win": 3e38}}), _answer()]) as server:
        [hostile, other] = await _played(server, 2, rewards={"win": 1e308})
    assert hostile.status is RolloutStatus.FAILED
    assert hostile.reward is None
    assert other.is_completed


@pytest.mark.parametrize("schema", [[], {"properties": []}, {"properties": {"add": True, "b": 5}}, {"properties": "x"}])
async def test_a_schema_of_a_wrong_form_breaks_nothing(schema: Any) -> None:
    async with _peer([_answer()], schema=schema) as server:
        [rollout] = await _played(server, 1, agent={"on_unparsable": "pass", "observation": "{{ total }}"})
    assert rollout.is_completed, rollout.error_message


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"Sec-WebSocket-Accept: x\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: \xff\xfe\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 101 X\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
        b"\x00\x01\x02 nonsense\r\n\r\n",
        b"",
    ],
)
async def test_a_hostile_answer_to_the_upgrade_fails_the_episode(answer: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    peer = await asyncio.start_server(speak, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}/ws"
    described = {"id": "1", "sessions": 64, "action_schema": SCHEMA, "observation_schema": {}}
    host = _Host(url)
    host.request = _one_more(described)  # type: ignore[method-assign]
    async with peer, _leased(host, described) as server:
        rollouts = await _played(server, 2)
    assert {rollout.error_kind for rollout in rollouts} == {ErrorKind.SANDBOX}


def _one_more(described: dict[str, Any]) -> Any:
    async def request(method: str, path: str, *, json: Any = None, seconds: float = 0.0) -> dict[str, Any]:
        return {**described, "exit_reason": "", "log": ""}

    return request


@pytest.mark.parametrize("code", [0, 999, 1005, 1015, 5000, 65535])
async def test_a_close_with_an_odd_code_is_a_lost_server(code: int) -> None:
    async def speak(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        writer = socket._writer
        assert writer is not None
        await writer.send_frame(code.to_bytes(2, "big") + b"\xff\xfe", 8)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        return socket

    application = web.Application()
    application.add_routes([web.get("/ws", speak)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    described = {"id": "1", "sessions": 64, "action_schema": SCHEMA, "observation_schema": {}}
    host = _Host(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/ws")  # type: ignore[union-attr]
    host.request = _one_more(described)  # type: ignore[method-assign]
    try:
        async with _leased(host, described) as server:
            [rollout] = await _played(server, 1)
    finally:
        await runner.cleanup()
    assert rollout.error_kind is ErrorKind.SANDBOX
