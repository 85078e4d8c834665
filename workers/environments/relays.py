"""An external server: nothing of it runs here; its frames are relayed to and from our socket."""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import WSMsgType, web

from backend.core.outgoing import CannotConnect, OutgoingPolicy
from backend.core.outgoing.client import BodyTooLarge, open_session, read_body, reason_of
from backend.core.outgoing.errors import describe_body
from backend.domain.addresses import port_of
from backend.domain.environments.manifest import ResourcesSpec
from backend.domain.errors import SandboxError
from workers.environments.inside.server import CAPACITY_PATH
from workers.environments.wire import MAX_FRAME_BYTES

SCHEMA_PATH = "/schema"
_ANSWER_SECONDS = 30.0
_MAX_ANSWER_BYTES = 2_000_000

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


@dataclass(slots=True, eq=False)
class Relay:
    """A relay in place of a server process."""

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


async def open_relay(resources: ResourcesSpec, listener: Any, *, policy: OutgoingPolicy) -> Relay:
    """Relay the server at `resources.remote` on `listener`. Raises SandboxError if its address is not allowed."""
    await _check(resources.remote, policy)
    http = open_session(seconds=None, policy=policy)
    app = web.Application()
    carrier = _Carrier(resources, http)
    app.add_routes(
        [
            web.get("/ws", carrier.carry_session),
            web.get(CAPACITY_PATH, carrier.capacity),
            web.get(SCHEMA_PATH, carrier.carry_schema),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return Relay(runner, http)


async def _check(url: str, policy: OutgoingPolicy) -> None:
    """Say early what every connection would be refused for."""
    try:
        parts = urlsplit(url)
        await asyncio.to_thread(policy.resolve, str(parts.hostname or ""), port_of(parts))
    except (CannotConnect, ValueError) as error:
        raise SandboxError(f"the remote environment at {url[:200]} cannot be used: {error}") from error


@dataclass(frozen=True, slots=True)
class _Carrier:
    resources: ResourcesSpec
    http: aiohttp.ClientSession

    @property
    def base(self) -> str:
        return self.resources.remote.rstrip("/")

    async def capacity(self, request: web.Request) -> web.Response:
        """The manifest's limit; the far side counts its sessions itself."""
        return web.json_response({"sessions": self.resources.sessions})

    async def carry_schema(self, request: web.Request) -> web.Response:
        """Its schemas. An error body may be any service's, so that only its type and size are carried."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            async with self.http.get(f"{self.base}{SCHEMA_PATH}", timeout=timeout) as answer:
                body = await read_body(answer, _MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, OSError, BodyTooLarge) as error:
            raise web.HTTPBadGateway(reason=_one_line(error)) from error
        if answer.status != 200:
            shown = f"HTTP {answer.status} ({describe_body(answer.headers.get('Content-Type'), body)})"
            raise web.HTTPBadGateway(reason=f"the remote server answered {shown}")
        return web.Response(body=body, content_type="application/json")

    async def carry_session(self, request: web.Request) -> web.StreamResponse:
        outer = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False)
        url = f"ws{self.base.removeprefix('http')}/ws"
        try:
            async with self.http.ws_connect(url, max_msg_size=MAX_FRAME_BYTES, compress=0) as inner:
                await outer.prepare(request)
                await carry_both(outer, inner)
        except (aiohttp.ClientError, OSError) as error:
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
    return f"the remote server cannot be used: {reason_of(error)}".replace("\n", " ").replace("\r", " ")[:300]
