"""The HTTP servers of workers: no request blocks them permanently, no header breaks them, they reveal no version."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web

from tests.envhost_fixture import HostProcess, start_host
from workers import http_server

TOKEN = "token-of-the-env-host"


@pytest.fixture(scope="module")
def remote_host() -> Iterator[HostProcess]:
    """An env host over the network, which asks for a token."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with TemporaryDirectory(prefix="pe-") as folder:
        host = start_host(Path(folder), address=f"http://127.0.0.1:{port}", PROCTOR_ENVHOST_TOKEN=TOKEN)
        yield host
        host.stop()


def _answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
        return answer


def _get(authorization: bytes) -> bytes:
    head = b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: " + authorization
    return head + b"\r\n\r\n"


def test_the_env_host_refuses_odd_tokens_and_names_no_version(remote_host: HostProcess) -> None:
    port = int(remote_host.address.rpartition(":")[2])
    answers = [_answer(port, _get(each)) for each in (b"Bearer \xff\xfe", b"Bearer ", b"Bearer wrong")]
    assert [answer.split(b" ")[1] for answer in answers] == [b"401"] * 3
    answers += [_answer(port, _get(b"Bearer " + TOKEN.encode())), _answer(port, b"\x00\x01 nonsense\r\n\r\n")]
    assert [answer.split(b" ")[1] for answer in answers[3:]] == [b"200", b"400"]
    for answer in answers:
        assert b"Server: proctor\r\n" in answer
        assert b"aiohttp" not in answer
        assert b"Python/" not in answer


@pytest.mark.slow
@pytest.mark.parametrize("drip", [b"", b"X"])
async def test_a_request_that_does_not_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, drip: bytes) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.5)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = http_server.make_runner(app, shutdown_seconds=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    began = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        with suppress(ConnectionError):
            while not reader.at_eof() and time.monotonic() - began < 5:
                writer.write(drip)
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 0.05)
        assert 0.3 < time.monotonic() - began < 3
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"here")
        writer.close()
    finally:
        await runner.cleanup()
