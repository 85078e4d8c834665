"""A server that somebody else runs: nothing of it runs here; its frames are carried to and from our socket."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from backend.domain.errors import PolicyError, SandboxError
from backend.domain.manifest import ResourcesSpec
from workers.environments.inside.server import CAPACITY_PATH
from workers.environments.wire import MAX_FRAME_BYTES
from workers.policies.endpoints import connector

_ANSWER_SECONDS = 30.0
_MAX_ANSWER_BYTES = 2_000_000

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


@dataclass(slots=True, eq=False)
class Relay:
    """Stands where a server's process would stand."""

    runner: web.AppRunner
    http: aiohttp.ClientSession
    pid: int = 0
    """There is no process of ours."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    code: int | None = None
    _closing: "asyncio.Task[None] | None" = None

    def kill(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        await self.runner.cleanup()
        await self.http.close()
        self.code = 0
        self.exited.set()


async def open_relay(resources: ResourcesSpec, listener: Any, *, allow_private: bool) -> Relay:
    """Serve on `listener` what stands at `resources.remote`."""
    with _refusals():
        http = aiohttp.ClientSession(connector=connector(resources.remote, allow_private=allow_private))
    app = web.Application()
    carrier = _Carrier(resources, http)
    app.add_routes(
        [
            web.get("/ws", carrier.carry_session),
            web.get(CAPACITY_PATH, carrier.capacity),
            web.get("/{path:.*}", carrier.carry_answer),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return Relay(runner, http)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """The rule about private addresses is the policies'; here it is the sandbox that refuses."""
    try:
        yield
    except PolicyError as error:
        raise SandboxError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Carrier:
    resources: ResourcesSpec
    http: aiohttp.ClientSession

    @property
    def base(self) -> str:
        return self.resources.remote.rstrip("/")

    async def capacity(self, request: web.Request) -> web.Response:
        """What the manifest says; the far side counts its sessions itself."""
        return web.json_response({"sessions": self.resources.sessions})

    async def carry_answer(self, request: web.Request) -> web.Response:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            async with self.http.get(f"{self.base}/{request.match_info['path']}", timeout=timeout) as answer:
                body = await answer.content.read(_MAX_ANSWER_BYTES)
                return web.Response(body=body, status=answer.status, content_type="application/json")
        except (aiohttp.ClientError, OSError, TimeoutError, PolicyError) as error:
            raise web.HTTPBadGateway(reason=_one_line(error)) from error

    async def carry_session(self, request: web.Request) -> web.StreamResponse:
        outer = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False)
        url = f"ws{self.base.removeprefix('http')}/ws"
        try:
            async with self.http.ws_connect(url, max_msg_size=MAX_FRAME_BYTES, compress=0) as inner:
                await outer.prepare(request)
                await carry_both(outer, inner)
        except (aiohttp.ClientError, OSError, TimeoutError, PolicyError) as error:
            raise web.HTTPBadGateway(reason=_one_line(error)) from error
        return outer


async def carry_both(outer: web.WebSocketResponse, inner: aiohttp.ClientWebSocketResponse) -> None:
    """Carry frames both ways until one side closes."""
    there, back = asyncio.create_task(_carry(outer, inner)), asyncio.create_task(_carry(inner, outer))
    await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
    for task in (there, back):
        task.cancel()
    await asyncio.gather(there, back, return_exceptions=True)
    await outer.close(code=inner.close_code or 1000)


async def _carry(source: Socket, target: Socket) -> None:
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ").replace("\r", " ")[:300]
