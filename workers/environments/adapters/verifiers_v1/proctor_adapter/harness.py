"""The library's plain chat program, run in this process: its model is the wire, its tools are called directly.

The library's own program is a separate process that reaches the model and the tools over the network, which a sandbox
does not have. What happens at the model's boundary is what `InterceptionServer.handle_request` does.
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

from .conversation import Message, PolicyConversation

Toolset = Any
"""A tool server of the library, which has no public type."""
CONVERSATION: contextvars.ContextVar[PolicyConversation] = contextvars.ContextVar("conversation")
"""The conversation of the rollout that runs in this context."""
_SESSION: contextvars.ContextVar[RolloutSession] = contextvars.ContextVar("session")
"""The rollout whose state the tools in this context share."""
_servers: dict[str, MCPServer] = {}
_toolsets: dict[str, Toolset] = {}
"""In-process tool servers and their toolsets, by the address that the harness gets for them."""
_shared: dict[str, str] = {}
"""Addresses of the whole taskset's servers, by name."""


class TurnRefused(Exception):
    """The library refused the next turn; the trace says why."""


class WireInterception(Interception):
    """Knows every running rollout's session by its secret. Nothing listens anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: dict[str, RolloutSession] = {}

    async def start(self, *_: object) -> None:
        """Nothing to start."""

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

    @asynccontextmanager
    async def client(spec: Message) -> AsyncIterator[McpClient]:
        async with McpClient(_servers[spec["url"]]) as client:
            yield client

    NullHarness.setup = WireInterception.start  # type: ignore[method-assign,assignment]
    NullHarness.launch = _launch  # type: ignore[method-assign,assignment]
    rollout.serve_tools = _serve_tools  # type: ignore[assignment]
    library_mcp.mcp_client = client  # type: ignore[assignment]


async def share(toolsets: list[Toolset]) -> None:
    """Build the servers that belong to the whole taskset once; all rollouts call the same."""
    for toolset in toolsets:
        address = _shared[toolset.server_name] = f"here:{uuid.uuid4().hex}"
        _servers[address] = await _build_server(toolset, INTERCEPTION.stack)


@asynccontextmanager
async def _serve_tools(
    toolsets: list[Toolset], runtime: object, shared: object = None, *, state_secret: str = "", **_: object
) -> AsyncIterator[dict[str, str]]:
    """Build the servers without a process and a port; their addresses are only names."""
    async with contextlib.AsyncExitStack() as stack:
        addresses = dict(_shared)
        for toolset in toolsets:
            address = f"here:{uuid.uuid4().hex}"
            _servers[address], _toolsets[address] = await _build_server(toolset, stack), toolset
            stack.callback(_servers.pop, address, None)
            stack.callback(_toolsets.pop, address, None)
            addresses[toolset.server_name] = address
        yield addresses


async def _build_server(toolset: Toolset, stack: contextlib.AsyncExitStack) -> MCPServer:
    async def pull_state() -> object:
        """The library's server requests the rollout's state before every call."""
        session = _SESSION.get()
        return toolset._state_adapter.validate_json(session.state_adapter.dump_json(session.trace.state))

    async def push_state(before: bytes) -> None:
        session, state = _SESSION.get(), _call_state.get()
        after = toolset._state_adapter.dump_json(state if state is not None else toolset._inert_state)
        if after != before:
            session.trace.state = session.state_adapter.validate_json(after)

    await stack.enter_async_context(toolset._exit_stack)
    toolset._pull_state, toolset._push_state = pull_state, push_state
    await toolset.setup()
    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


async def _launch(
    harness: NullHarness,
    ctx: object,
    trace: Any,
    runtime: object,
    endpoint: str,
    secret: str,
    mcp_urls: dict[str, str],
    data: object,
    tool_interception_url: str | None = None,
) -> ProgramResult:
    """Do what `run_chat_loop` does, until a reply without a call or until the library stops the rollout."""
    session = INTERCEPTION.sessions[secret]
    _SESSION.set(session)
    system, prompt = harness.resolve_prompt(data)
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
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
        with contextlib.suppress(TurnRefused):
            while True:
                reply = await _exchange(session, messages, tools)
                messages.append(reply.model_dump(exclude_none=True))
                if not reply.tool_calls:
                    break
                for call in reply.tool_calls:  # their results, as the library's program writes them
                    arguments = json.loads(call.arguments or "{}")
                    result = {"role": "tool", "tool_call_id": call.id, "content": "", "name": call.name}
                    if session.request_interceptors or session.request_stops:
                        decision = await session.decide_tool(call.id, call.name, arguments)
                        if decision["action"] == "stop":
                            raise TurnRefused
                        if decision["action"] == "deny":
                            messages.append(bound_tool_message(decision["message"]))
                            continue
                    result["content"] = f"error: unknown tool {call.name!r}"
                    if call.name in dispatch:
                        result["content"] = await library_mcp.call_mcp(clients, dispatch, call.name, arguments)
                    messages.append(bound_tool_message(result))
    return ProgramResult(exit_code=0, stdout="", stderr="")


async def _exchange(session: RolloutSession, messages: list[Message], tools: list[Tool]) -> AssistantMessage:
    """One turn over the model's boundary. Raises TurnRefused."""
    session.error = None
    if session.stopped or await session.refused() is not None:
        raise TurnRefused
    request = Request(messages=TypeAdapter(Messages).validate_python(messages), tools=tools or None)
    request, rewrites, stopped = await session.rewrite_request(request)
    session.trace.request_rewrites.extend(rewrites)
    turn = graph.prepare_turn(session.trace, request.messages, request.tools)
    if stopped is not None:
        turn.commit_prompt()
        session.trace.stop(stopped)
        raise TurnRefused
    if session.on_turn_input is not None:
        on_turn_input, session.on_turn_input = session.on_turn_input, None
        on_turn_input()
    began = time.time()
    reply = await CONVERSATION.get().ask(request.messages, request.tools)
    calls = None
    if reply.tool:
        arguments = json.dumps(reply.arguments, ensure_ascii=False)
        calls = [ToolCall(id=f"call_{uuid.uuid4().hex[:12]}", name=reply.tool, arguments=arguments)]
    response = Response(
        id=uuid.uuid4().hex,
        created=int(time.time()),
        model=session.ctx.model,
        message=AssistantMessage(content=reply.text if reply.text or not calls else None, tool_calls=calls),
        finish_reason="tool_calls" if calls else "stop",
    )
    response, rewrites, stopped = await session.rewrite_response(response)
    node = turn.commit(response)
    session.consume_prepared(turn.tail)
    session.trace.response_rewrites.extend(rewrites)
    span = TimeSpan(start=began, end=time.time())
    session.trace.calls.append(ModelCall(node=node, finish_reason=response.finish_reason, time=span))
    stopped = stopped or await session.gate_tool_calls(node)
    if stopped is not None:
        session.trace.stop(stopped)
        raise TurnRefused
    return response.message
