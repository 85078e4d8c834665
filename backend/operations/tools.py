"""Operations as tools for agents (Model Context Protocol), over standard input or `/mcp`.

A tool call becomes an ordinary request, so that roles, limits, audit log and errors are the same.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from backend.domain.vocabulary import Role

Context = ServerRequestContext[Any, Any]
Document = Mapping[str, Any]
"""The API's description."""
Query = dict[str, Any]
Send = Callable[[Context, str, str, Query, dict[str, object] | None], Awaitable[tuple[int, object]]]
"""Sends a request (method, path, query, body) for a tool call and returns its status and parsed JSON."""

MAX_RESULT_CHARACTERS = 100_000
"""Longer results are cut to fit a model's context, with advice on how to request less."""
_REFERENCE = re.compile(r'"#/components/schemas/([^"]+)"')


class ToolOperation(NamedTuple):
    """An operation that agents may call."""

    tool: Tool
    role: Role
    method: str
    path: str
    segments: list[str]
    sends_body: bool


def make_server(document: Document, send: Send, instructions: str, role_of: Callable[[Context], Role]) -> Server[Any]:
    """Build a server with the tools that the caller's role includes."""
    operations = {each.tool.name: each for each in _tools(document)}

    async def list_tools(context: Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        role = role_of(context)
        return ListToolsResult(tools=[each.tool for each in operations.values() if role.includes(each.role)])

    async def call_tool(context: Context, call: CallToolRequestParams) -> CallToolResult:
        operation = operations.get(call.name)
        if operation is None:
            return _result(f"There is no tool named {call.name[:100]}.", is_error=True)
        try:
            arguments = dict(call.arguments or {})
            segments = {name: quote(str(arguments.pop(name)), safe="") for name in operation.segments}
        except KeyError as missing:
            return _result(f"The argument {missing} is required.", is_error=True)
        path = operation.path.format(**segments)
        query, body = ({}, arguments) if operation.sends_body else (arguments, None)
        status, answer = await send(context, operation.method, path, query, body)
        if status >= 400:
            problem: dict[str, Any] = (
                answer if isinstance(answer, dict) else {"detail": f"The request failed with status {status}."}
            )
            fields = (f"{name}: {text}" for name, text in (problem.get("fields") or {}).items())
            return _result("\n".join([str(problem.get("detail", f"Status {status}")), *fields]), is_error=True)
        text = "Done." if answer is None else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        if len(text) > MAX_RESULT_CHARACTERS:
            advice = f"The result was cut after {MAX_RESULT_CHARACTERS:,} characters. Use a filter or a smaller limit."
            text = f"{text[:MAX_RESULT_CHARACTERS]}\n{advice}"
        return _result(text)

    version = str(document["info"]["version"])
    return Server(
        "proctor", version=version, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _tools(document: Document) -> list[ToolOperation]:
    found = []
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            if not route.get("x-proctor", {}).get("tool"):
                continue
            properties: dict[str, object] = {}
            required: list[str] = []
            segments = []
            for each in route.get("parameters", ()):
                properties[each["name"]] = each["schema"] | {"description": each.get("description", "")}
                if each.get("required"):
                    required.append(each["name"])
                if each["in"] == "path":
                    segments.append(each["name"])
            body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if body:
                model = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]
                properties |= model.get("properties", {})
                required += model.get("required", [])
            schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
            schema |= {"additionalProperties": False}
            definitions: dict[str, object] = {}  # a tool's schema is self-contained
            unread = [json.dumps(schema)]
            while unread:
                for name in _REFERENCE.findall(unread.pop()):
                    if name not in definitions:
                        definitions[name] = document["components"]["schemas"][name]
                        unread.append(json.dumps(definitions[name]))
            whole = schema | ({"$defs": definitions} if definitions else {})
            noun, name = route["operationId"].split(".")
            tool = Tool(
                name=f"{noun}_{name}",
                title=route.get("summary"),
                description=route.get("description"),
                input_schema=json.loads(json.dumps(whole).replace("#/components/schemas/", "#/$defs/")),
                annotations=ToolAnnotations(
                    read_only_hint=method == "get", destructive_hint=method == "delete", open_world_hint=False
                ),
            )
            role = Role(route["x-proctor"]["role"])
            found.append(ToolOperation(tool, role, method.upper(), path, segments, body is not None))
    return sorted(found, key=lambda each: each.tool.name)


def _result(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)
