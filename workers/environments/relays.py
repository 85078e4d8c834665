"""An external server: nothing of it runs here; its frames are relayed to and from our socket."""

import asyncio
import socket
from dataclasses import dataclass
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
from workers.environments.inside.shared_connection import MAX_FRAME_BYTES
from workers.environments.processes import ServerProcess

Socket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


@dataclass(slots=True, eq=False, kw_only=True)
class Relay(ServerProcess):
    runner: web.AppRunner
    http: aiohttp.ClientSession
    _closing: asyncio.Task[None] | None = None

    def kill(self) -> None:
        self._closing = self._closing or asyncio.create_task(self._close())

    async def _close(self) -> None:
        await self.runner.cleanup()
        await self.http.close()
        self.code = 0
        self.exited.set()


async def open_relay(resources: ResourcesSpec, listener: socket.socket, *, policy: OutgoingPolicy) -> Relay:
    """Relay the server at `resources.remote` on `listener`. Raises SandboxError if its address is not allowed."""
    base = resources.remote.rstrip("/")
    try:  # report early why every connection would be refused
        parts = urlsplit(resources.remote)
        await asyncio.to_thread(policy.resolve, str(parts.hostname or ""), port_of(parts))
    except (CannotConnect, ValueError) as error:
        raise SandboxError(f"the remote environment at {resources.remote[:200]} cannot be used: {error}") from error
    http = open_session(seconds=None, policy=policy)

    async def relay(request: web.Request) -> web.StreamResponse:
        """Relay its schemas and sessions. The capacity is the manifest's; it counts its sessions itself."""
        if request.path == CAPACITY_PATH:
            return web.json_response({"sessions": resources.sessions})
        try:
            if request.path == "/ws":
                return await relay_frames(request, http, f"ws{base.removeprefix('http')}/ws")
            async with http.get(f"{base}/schema", timeout=aiohttp.ClientTimeout(total=30)) as answer:
                body = await read_body(answer, 2_000_000)
        except (aiohttp.ClientError, OSError, BodyTooLarge) as error:
            reason = f"the remote server cannot be used: {reason_of(error)}"
            raise web.HTTPBadGateway(reason=reason.replace("\n", " ").replace("\r", " ")[:300]) from error
        if answer.status != 200:  # an error body may come from any service, so only its type and size are relayed
            shown = f"HTTP {answer.status} ({describe_body(answer.headers.get('Content-Type'), body)})"
            raise web.HTTPBadGateway(reason=f"the remote server answered {shown}")
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.add_routes([web.get(path, relay) for path in ("/ws", CAPACITY_PATH, "/schema")])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return Relay(runner=runner, http=http)


async def relay_frames(
    request: web.Request, http: aiohttp.ClientSession, url: str, *, heartbeat: float | None = None, protocol: str = ""
) -> web.WebSocketResponse:
    """Answer a WebSocket request with the frames of the one at `url`, until either of them closes.

    `protocol`: subprotocol that is passed on if the client requests it.
    """
    requested = request.headers.get("Sec-WebSocket-Protocol", "").replace(" ", "").split(",")
    protocols = (protocol,) if protocol in requested and protocol else ()

    async def copy(source: Socket, target: Socket) -> None:
        async for message in source:
            if message.type is WSMsgType.TEXT:
                await target.send_str(message.data)
            elif message.type is WSMsgType.BINARY and inner.protocol:
                await target.send_bytes(message.data)

    size = MAX_FRAME_BYTES
    async with http.ws_connect(url, protocols=protocols, max_msg_size=size, compress=0) as inner:
        accepted = (inner.protocol,) if inner.protocol else ()
        outer = web.WebSocketResponse(protocols=accepted, max_msg_size=size, compress=False, heartbeat=heartbeat)
        await outer.prepare(request)
        tasks = [asyncio.create_task(copy(outer, inner)), asyncio.create_task(copy(inner, outer))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await outer.close(code=inner.close_code or 1000)
    return outer
