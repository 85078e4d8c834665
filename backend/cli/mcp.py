"""`proctor mcp`: tools for agents over standard input and output."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.connection import connect
from backend.operations.skill import read_skill
from proctor import Client, ProctorError

if TYPE_CHECKING:
    from backend.operations.tools import Context, Query


def mcp(
    skill: Annotated[
        bool, typer.Option("--skill", help="Print the guide for agents and exit. Save it as a skill of your agent.")
    ] = False,
) -> None:
    """Serve operations as MCP tools over standard input and output, for an agent on this machine.

    Your token's role decides which tools there are. Agents elsewhere connect to /mcp of the server.
    """
    if skill:
        sys.stdout.write(read_skill())
        return
    asyncio.run(_serve(connect()))


async def _serve(client: Client) -> None:
    from mcp.server.stdio import stdio_server

    from backend.domain.vocabulary import Role
    from backend.operations.tools import make_server

    role = Role(client.get("/me")["role"])

    async def send(
        _: "Context", method: str, path: str, query: "Query", body: dict[str, object] | None
    ) -> tuple[int, object]:
        address = path.removeprefix("/api/v1")
        try:
            return 200, await asyncio.to_thread(client.request, method, address, query=query, body=body)
        except ProctorError as refused:
            return refused.status or 503, {"detail": str(refused)}

    server = make_server(client.get("/openapi.json"), send, read_skill(), lambda _: role)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
