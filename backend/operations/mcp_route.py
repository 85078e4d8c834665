"""`/mcp`: tools for agents over streamable HTTP, with an API token and the role of that token."""

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, FastAPI, Request
from starlette.responses import Response
from starlette.types import Receive, Scope
from starlette.types import Send as SendMessage

from backend.domain.vocabulary import Role
from backend.errors import NotAllowed
from backend.operations.skill import read_skill
from backend.web.api_description import describe
from backend.web.dependencies import RequireRole, SessionDep, get_actor
from backend.web.identity import Actor

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from backend.operations.tools import Context, Query

MAX_BODY_BYTES = 4 * 1024 * 1024


class RequireToken(RequireRole):
    """Requires an API token of any role. Each tool call is checked again as an ordinary request."""

    async def __call__(
        self, request: Request, session: SessionDep, actor: Annotated[Actor, Depends(get_actor)]
    ) -> Actor:
        if not actor.is_token:
            raise NotAllowed("Agents connect with an API token. Create one on the Account page.")
        return actor


class ToolServer:
    """The MCP server of an app. It starts with the first request, because its library is slow to import."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._starting, self._stopping = asyncio.Lock(), asyncio.Event()
        self._manager: StreamableHTTPSessionManager | None = None
        self._running: asyncio.Task[None] | None = None

    async def manager(self) -> "StreamableHTTPSessionManager":
        async with self._starting:
            if self._manager is None:
                from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

                from backend.operations.tools import make_server

                def role_of(context: "Context") -> Role:
                    assert context.request is not None
                    actor: Actor = context.request.state.actor
                    return actor.access.highest

                server = make_server(describe(self._app), self._send, read_skill(), role_of)
                manager = StreamableHTTPSessionManager(
                    server, json_response=True, stateless=True, max_request_body_size=MAX_BODY_BYTES
                )
                started = asyncio.Event()

                async def run() -> None:
                    """Run in one task from start to stop, as its task group requires."""
                    async with manager.run():
                        started.set()
                        await self._stopping.wait()

                self._running = asyncio.create_task(run())
                await started.wait()
                self._manager = manager
            return self._manager

    async def stop(self) -> None:
        self._stopping.set()
        if self._running is not None:
            await self._running
        self._starting, self._stopping, self._manager, self._running = asyncio.Lock(), asyncio.Event(), None, None

    async def _send(
        self, context: "Context", method: str, path: str, query: "Query", body: dict[str, object] | None
    ) -> tuple[int, object]:
        """Send the operation's request inside this process, with the caller's token."""
        assert context.request is not None
        headers = {"Authorization": context.request.headers["authorization"]}
        import httpx  # only agents need it

        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False, client=context.request.client or ("", 0))
        base_url = str(context.request.base_url)
        async with httpx.AsyncClient(transport=transport, base_url=base_url, timeout=60.0) as client:
            answer = await client.request(method, path, params=query, json=body, headers=headers)
        return answer.status_code, answer.json() if answer.content else None


def add_mcp(app: FastAPI) -> ToolServer:
    """Add the route. Stop the returned server when the app stops."""
    server = ToolServer(app)
    guard = RequireToken(Role.VIEWER)

    class Delegated(Response):
        """Passes the connection to the MCP server."""

        async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
            await (await server.manager()).handle_request(scope, receive, send)

    @app.api_route("/mcp", methods=["GET", "POST", "DELETE"], include_in_schema=False)
    async def mcp(_: Annotated[Actor, Depends(guard)]) -> Response:
        return Delegated()

    return server
