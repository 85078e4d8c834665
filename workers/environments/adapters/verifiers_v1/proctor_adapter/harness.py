"""The library's plain chat program, run in this process: its model is the wire, its tools are called directly.

The library's own program is a process of its own that reaches the model and the tools over the network, of which a
sandbox has none. What happens at the model's boundary is what `InterceptionServer.handle_request` does.
"""

import contextlib
import contextvars
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client as McpClient
from mcp.server.mcpserver import MCPServer
from pydantic import TypeAdapter
from verifiers.v1 import graph, rollout
from verifiers.v1.harnesses.null.harness import NullHarness
from verifiers.v1.harnesses.utils import mcp as library_mcp
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.interception import Interception
from verifiers.v1.mcp.server import _call_state
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import ModelCall, TimeSpan
from verifiers.v1.types import AssistantMessage, Messages, Request, Response, Tool, ToolCall

from .lines import Line
from .models import Reply

LINE: contextvars.ContextVar[Line] = contextvars.ContextVar("line")
"""Who plays the rollout that runs in this context."""
_SESSION: contextvars.ContextVar[RolloutSession] = contextvars.ContextVar("session")
"""The rollout whose state the tools in this context share."""
_messages = TypeAdapter(Messages)
_DONE = ProgramResult(exit_code=0, stdout="", stderr="")


class Stopped(Exception):
    """The library refused the next turn; the trace says why."""


class WireInterception(Interception):
    """Knows every running rollout's session by its secret. Nothing listens anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, RolloutSession] = {}

    async def start(self) -> None:
        return None

    @asynccontextmanager
    async def acquire(self, session: RolloutSession) -> AsyncIterator[tuple[str, str, str]]:
        secret = uuid.uuid4().hex
        self.sessions[secret] = session
        try:
            yield "http://here", secret, secret
        finally:
            session.release()
            del self.sessions[secret]


INTERCEPTION = WireInterception()


def play_in_this_process() -> None:
    """Let the library's plain harness and its tool servers run here."""
    NullHarness.setup = _nothing  # type: ignore[method-assign]
    NullHarness.launch = _launch  # type: ignore[method-assign,assignment]
    rollout.serve_tools = _tools_here  # type: ignore[assignment]
    library_mcp.mcp_client = _client_here  # type: ignore[assignment]


async def _nothing(harness: Any, runtime: Any) -> None:
    return None


_servers: dict[str, MCPServer] = {}
_toolsets: dict[str, Any] = {}
"""In-process tool servers, and what they serve, by the address that the harness is given for them."""


@asynccontextmanager
async def _tools_here(
    toolsets: list[Any], runtime: Any, shared: Any = None, *, state_secret: str = "", **_: Any
) -> AsyncIterator[dict[str, str]]:
    """Build the servers without a process and a port; their addresses are only names."""
    async with contextlib.AsyncExitStack() as stack:
        addresses = dict(_shared)
        for toolset in toolsets:
            address = f"here:{uuid.uuid4().hex}"
            _servers[address], _toolsets[address] = await _server(toolset, stack), toolset
            stack.callback(_servers.pop, address, None)
            stack.callback(_toolsets.pop, address, None)
            addresses[toolset.server_name] = address
        yield addresses


_shared: dict[str, str] = {}
_for_ever = contextlib.AsyncExitStack()


async def share(toolsets: list[Any]) -> None:
    """Servers that belong to the whole taskset are built once; all rollouts call the same."""
    for toolset in toolsets:
        address = _shared[toolset.server_name] = f"here:{uuid.uuid4().hex}"
        _servers[address] = await _server(toolset, _for_ever)


async def _server(toolset: Any, stack: contextlib.AsyncExitStack) -> MCPServer:
    await stack.enter_async_context(toolset._exit_stack)
    toolset._pull_state = lambda: _pull(toolset)
    toolset._push_state = lambda before: _push(toolset, before)
    await toolset.setup()
    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


async def _pull(toolset: Any) -> Any:
    """Requests of the library's server before every call."""
    session = _SESSION.get()
    return toolset._state_adapter.validate_json(session.state_adapter.dump_json(session.trace.state))


async def _push(toolset: Any, before: bytes) -> None:
    session, state = _SESSION.get(), _call_state.get()
    after = toolset._state_adapter.dump_json(state if state is not None else toolset._inert_state)
    if after != before:
        session.trace.state = session.state_adapter.validate_json(after)


@asynccontextmanager
async def _client_here(spec: dict[str, Any]) -> AsyncIterator[McpClient]:
    async with McpClient(_servers[spec["url"]]) as client:
        yield client


async def _launch(
    harness: Any,
    ctx: Any,
    trace: Any,
    runtime: Any,
    endpoint: str,
    secret: str,
    mcp_urls: dict[str, str],
    data: Any,
    tool_interception_url: str | None = None,
) -> ProgramResult:
    """What `run_chat_loop` does, until a reply without a call or until the library stops the rollout."""
    session = INTERCEPTION.sessions[secret]
    _SESSION.set(session)
    system, prompt = harness.resolve_prompt(data)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        messages.append({"role": "user", "content": prompt})
    elif prompt is not None:
        messages += [message.model_dump(exclude_none=True) for message in prompt]
    async with contextlib.AsyncExitStack() as stack:
        for address in mcp_urls.values():
            if address in _toolsets:
                await _toolsets[address].setup_task(trace.task.data)
        servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
        listed, dispatch, clients = await library_mcp.connect_mcp(servers, stack)
        tools = [Tool(**schema["function"]) for schema in listed]
        with contextlib.suppress(Stopped):
            while True:
                reply = await _exchange(session, messages, tools)
                messages.append(reply.model_dump(exclude_none=True))
                if not reply.tool_calls:
                    break
                for call in reply.tool_calls:
                    messages.append(await _answer(session, call, clients, dispatch))
    return _DONE


async def _answer(session: RolloutSession, call: ToolCall, clients: Any, dispatch: Any) -> dict[str, Any]:
    """A tool's result as the library's program writes it."""
    message = {"role": "tool", "tool_call_id": call.id, "content": "", "name": call.name}
    if session.request_interceptors or session.request_stops:
        decision = await session.decide_tool(call.id, call.name, json.loads(call.arguments or "{}"))
        if decision["action"] == "stop":
            raise Stopped
        if decision["action"] == "deny":
            return bound_tool_message(decision["message"])
    if call.name in dispatch:
        content = await library_mcp.call_mcp(clients, dispatch, call.name, json.loads(call.arguments or "{}"))
    else:
        content = f"error: unknown tool {call.name!r}"
    return bound_tool_message({**message, "content": content})


async def _exchange(session: RolloutSession, messages: list[dict[str, Any]], tools: list[Tool]) -> AssistantMessage:
    """One turn over the model's boundary. Raises Stopped."""
    session.error = None
    if session.stopped or await session.refused() is not None:
        raise Stopped
    request = Request(messages=_messages.validate_python(messages), tools=tools or None)
    request, rewrites, stopped = await session.rewrite_request(request)
    session.trace.request_rewrites.extend(rewrites)
    turn = graph.prepare_turn(session.trace, request.messages, request.tools)
    if stopped is not None:
        turn.commit_prompt()
        session.trace.stop(stopped)
        raise Stopped
    if session.on_turn_input is not None:
        heard, session.on_turn_input = session.on_turn_input, None
        heard()
    began = time.time()
    response = _response(await LINE.get().ask(request.messages, request.tools), session)
    response, rewrites, stopped = await session.rewrite_response(response)
    node = turn.commit(response)
    session.consume_prepared(turn.tail)
    session.trace.response_rewrites.extend(rewrites)
    span = TimeSpan(start=began, end=time.time())
    session.trace.calls.append(ModelCall(node=node, finish_reason=response.finish_reason, time=span))
    stopped = stopped or await session.gate_tool_calls(node)
    if stopped is not None:
        session.trace.stop(stopped)
        raise Stopped
    return response.message


def _response(reply: Reply, session: RolloutSession) -> Response:
    calls = None
    if reply.tool:
        arguments = json.dumps(reply.arguments, ensure_ascii=False)
        calls = [ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", name=reply.tool, arguments=arguments)]
    message = AssistantMessage(content=reply.text if reply.text or not calls else None, tool_calls=calls)
    reason = "tool_calls" if calls else "stop"
    return Response(
        id=uuid.uuid4().hex, created=int(time.time()), model=session.ctx.model, message=message, finish_reason=reason
    )
