"""Tools: the calls that a policy can make, how replies write them, and explanations of malformed ones.

Schemas and replies may be hostile: nothing is fetched, none of their regular expressions runs, and work is bounded.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from backend.domain.text import JsonObject, refuse_constant

if TYPE_CHECKING:
    from backend.domain.environments.tool_schemas import ArgumentsCheck

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128
MAX_LISTED_CHARACTERS = 400_000
"""Characters of a whole list of tools, as JSON."""
MAX_LISTED_PARTS = 4000
MAX_DEPTH = 32
"""Nesting of a call's arguments."""
MAX_CALLS = 16
"""Maximum number of calls in a reply."""
MAX_REPORTED = 3
"""Maximum number of problems of one call that are reported."""

HOW = f"""\
You act by calling tools, exactly one call in a reply, written like this:
{BEGIN}{{"name": "…", "arguments": {{…}}}}{END}
The tools, with the JSON schema of their arguments:"""


class ToolsUnusable(ValueError):
    """The environment's list of tools cannot be used."""


class CallUnreadable(ValueError):
    """A reply has no call that can be parsed."""


class Tool(BaseModel):
    """One function that a policy may call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: str = Field(default="", max_length=20_000)
    parameters: JsonObject = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""

    @field_validator("parameters")
    @classmethod
    def _is_a_schema(cls, schema: JsonObject) -> JsonObject:
        try:
            from backend.domain.environments.tool_schemas import schema_problem  # only packages with tools need it

            found = schema_problem(json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {error}") from error
        if found is not None:
            message, path = found
            raise PydanticCustomError("json_schema", "{message}", {"message": message, "path": path})
        return schema

    def problem(self, arguments: JsonObject) -> str | None:
        """Explain why the arguments are invalid; None if they are valid."""
        errors = self._check.problems(arguments)
        if errors is None:
            return f"The arguments of `{self.name}` cannot be checked against its schema."
        problems = [f"`{where}`: {message}" if where else message for where, message in errors[:MAX_REPORTED]]
        more = f" (and {len(errors) - MAX_REPORTED} more)" if len(errors) > MAX_REPORTED else ""
        return f"`{self.name}` was not called: {'; '.join(problems)}{more}." if problems else None

    @cached_property
    def _check(self) -> "ArgumentsCheck":
        from backend.domain.environments.tool_schemas import ArgumentsCheck

        return ArgumentsCheck(self.parameters)


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: JsonObject

    def problem(self, tools: Sequence[Tool]) -> str | None:
        """Explain why the call cannot be made with these tools; None if it can."""
        tool = next((tool for tool in tools if tool.name == self.name), None)
        if tool is None:
            return f"There is no tool {self.name[:80]!r}; there are: {', '.join(tool.name for tool in tools)}."
        return tool.problem(self.arguments)


def write_call(name: str, arguments: Mapping[str, object] | str) -> str:
    """Return the canonical text of a call. Text arguments are kept: an endpoint may send some that are not JSON."""
    written = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    text = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {written}}}'
    for tag in (BEGIN, END):  # inside a value they would end the call
        text = text.replace(tag, "\\u003c" + tag[1:])
    return BEGIN + text + END


def split_calls(reply: str) -> tuple[str, list[Call], str]:
    """Return the text before the first call, the calls in order, and the joined text after each of them.

    Raises CallUnreadable, with advice, if one of them cannot be parsed: then none is made.
    """
    before, *parts = reply.split(BEGIN)
    if not parts or reply.count(END) != len(parts):
        found = "no complete" if len(parts) <= 1 else f"{len(parts)} nested or incomplete"
        raise CallUnreadable(f"Found {found} {BEGIN}…{END}; write exactly one.")
    if len(parts) > MAX_CALLS:
        raise CallUnreadable(f"Found {len(parts)} {BEGIN}…{END}; at most {MAX_CALLS} are made of one reply.")
    if any(END not in part for part in parts):
        raise CallUnreadable(f"{END} appears before {BEGIN}.")
    calls, after = [], ""
    for body, _, rest in (part.partition(END) for part in parts):
        after += rest
        try:
            value = json.loads(body, object_pairs_hook=_unique, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise CallUnreadable(f"The text in {BEGIN} is not JSON: {str(error)[:200]}.") from error
        if not isinstance(value, dict):
            raise CallUnreadable(f"The text in {BEGIN} is JSON, but not an object.")
        if unknown := value.keys() - {"name", "arguments"}:
            raise CallUnreadable(f"A call has `name` and `arguments`, not {min(unknown)[:80]!r}.")
        name, arguments = value.get("name"), value.get("arguments", {})
        if not isinstance(name, str) or not name:
            raise CallUnreadable("`name` must be the name of a tool.")
        if not isinstance(arguments, dict):
            raise CallUnreadable("`arguments` must be an object.")
        if _is_deeper(arguments, MAX_DEPTH):
            raise CallUnreadable(f"`arguments` are nested deeper than {MAX_DEPTH}.")
        calls.append(Call(name, arguments))
    return before, calls, after


def explain_for_api(text: str) -> str:
    """Explain a reply without a valid call to a policy whose endpoint supports tool calls."""
    text = text.replace(
        f"Found no complete {BEGIN}…{END}; write exactly one.",
        "No tool was called. Call one of the tools you were given.",
    )
    return text.replace(f"The text in {BEGIN}", "What was sent as arguments")


def read_tools(listed: object) -> tuple[Tool, ...]:
    """Read tools as environments list them: in OpenAI's, MCP's or our spelling. Raises ToolsUnusable."""
    try:
        text = json.dumps(listed)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolsUnusable(f"the list of tools is not JSON: {error}") from error
    if len(text) > MAX_LISTED_CHARACTERS:
        raise ToolsUnusable(
            f"the list of tools has {len(text):,} characters; at most {MAX_LISTED_CHARACTERS:,} are read"
        )
    if text.count("{") > MAX_LISTED_PARTS:
        raise ToolsUnusable(f"the list of tools has more than {MAX_LISTED_PARTS:,} objects")
    return _read_tools(text)


def render_tools(tools: Iterable[Tool]) -> str:
    """Describe the tools and how to call them, for a policy that writes plain text."""
    return "\n".join([HOW, *(json.dumps(tool.model_dump(), ensure_ascii=False) for tool in tools)])


@lru_cache(maxsize=256)
def _read_tools(text: str) -> tuple[Tool, ...]:
    listed = json.loads(text)
    if not isinstance(listed, list) or len(listed) > MAX_TOOLS:
        raise ToolsUnusable(f"the tools must be a list of at most {MAX_TOOLS}")
    tools = []
    for item in listed:
        entry = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(entry, dict):
            raise ToolsUnusable(f"{str(item)[:80]!r} describes no tool")
        spellings = (entry.get(key) for key in ("parameters", "input_schema", "inputSchema"))
        schema = next((schema for schema in spellings if schema), {"type": "object"})
        try:
            tools.append(
                Tool(name=entry.get("name", ""), description=entry.get("description") or "", parameters=schema)
            )
        except ValueError as error:
            raise ToolsUnusable(f"tool {str(entry.get('name'))[:80]!r}: {str(error)[:300]}") from error
    if len({tool.name for tool in tools}) < len(tools):
        raise ToolsUnusable("two tools have the same name")
    return tuple(tools)


def _unique(pairs: list[tuple[str, object]]) -> JsonObject:
    """Refuse a key with two values, so that a reply cannot hedge."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _is_deeper(value: object, limit: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return limit < 0 or any(_is_deeper(child, limit - 1) for child in children)
