"""Tools: the calls that a policy can make, how replies write them, and explanations of malformed ones.

Schemas and replies may be hostile: nothing is fetched, none of their regular expressions runs, and work is bounded.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Annotated, Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from jsonschema.protocols import Validator
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from backend.domain.text import JsonObject, refuse_constant

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128
MAX_LISTED_CHARACTERS = 400_000
"""Characters of a whole list of tools, as JSON."""
MAX_PARTS = 1000
"""Maximum number of objects in a schema; checking one needs at most half a millisecond."""
MAX_LISTED_PARTS = 4000
MAX_DEPTH = 32
"""Nesting of a call's arguments."""
MAX_CHECKS = 20_000
"""Maximum number of keywords per validation; schemas can expand without end."""
MAX_CALLS = 16
"""Maximum number of calls in a reply."""
MAX_COLLECTED, MAX_REPORTED = 20, 3
"""Maximum number of problems of one call that are collected (each may hold a long text), and reported."""

HOW = f"""\
You act by calling tools, exactly one call in a reply, written like this:
{BEGIN}{{"name": "…", "arguments": {{…}}}}{END}
The tools, with the JSON schema of their arguments:"""


class ToolsUnusable(ValueError):
    """The environment's list of tools cannot be used."""


class CallUnreadable(ValueError):
    """A reply has no call that can be parsed."""


class _TooMuchWork(Exception):
    pass


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
            found = _schema_problem(json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {error}") from error
        if found is not None:
            message, path = found
            raise PydanticCustomError("json_schema", "{message}", {"message": message, "path": path})
        return schema

    def problem(self, arguments: JsonObject) -> str | None:
        """Explain why the arguments are invalid; None if they are valid."""
        try:
            _work.left = MAX_CHECKS
            found = islice(self._validator.iter_errors(dict(arguments)), MAX_COLLECTED)
            errors = sorted(found, key=lambda error: list(map(str, error.path)))
        except (_TooMuchWork, RecursionError, Unresolvable, ArithmeticError):
            return f"The arguments of `{self.name}` cannot be checked against its schema."
        problems = []
        for error in errors[:MAX_REPORTED]:
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".")
            problems.append(f"`{where[:80]}`: {_short(error.message)}" if where else _short(error.message))
        more = f" (and {len(errors) - MAX_REPORTED} more)" if len(errors) > MAX_REPORTED else ""
        return f"`{self.name}` was not called: {'; '.join(problems)}{more}." if problems else None

    @cached_property
    def _validator(self) -> Validator:
        return _ArgumentsValidator(self.parameters, registry=Registry())


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


_work = threading.local()
KeywordCheck = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


def _counted(keyword: str, check: KeywordCheck) -> KeywordCheck:
    """Count the work of a check, and skip what a regular expression decides."""

    def counted(validator: Validator, value: object, instance: object, schema: JsonObject) -> Iterator[ValidationError]:
        work = 1
        if keyword == "uniqueItems" and value and isinstance(instance, list):
            is_sortable = all(isinstance(item, str) for item in instance)
            work += 0 if is_sortable else len(instance) ** 2 // 20  # the library compares each pair of other items
        _work.left -= work
        if _work.left < 0:
            raise _TooMuchWork
        if keyword != "additionalProperties" or "patternProperties" not in schema:
            yield from check(validator, value, instance, schema) or ()

    return counted


_BY_EXPRESSION = {"pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems"}
"""Keywords that are left to the environment: a regular expression can take forever."""
_ArgumentsValidator = validators.create(
    Draft202012Validator.META_SCHEMA,
    {
        keyword: _counted(keyword, check)
        for keyword, check in Draft202012Validator.VALIDATORS.items()
        if keyword not in _BY_EXPRESSION
    },
    type_checker=Draft202012Validator.TYPE_CHECKER,
)


@lru_cache(maxsize=1024)
def _schema_problem(text: str) -> tuple[str, list[str | int]] | None:
    """Explain why a text is not a schema of arguments, with the place in it; None if it is one."""
    if text.count("{") > MAX_PARTS:
        return f"has more than {MAX_PARTS:,} parts", []
    schema = json.loads(text)
    if schema.get("type", "object") != "object":
        return "the schema of a tool's arguments has `type: object`", ["type"]
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"is not a JSON schema: {_short(error.message)}", list(error.path)
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):
            return f"refers to `{reference[:80]}`, which it does not contain (nothing is fetched)", []
    return None


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for child in schema.values():
            yield from _references(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _references(child)


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:90]} … {message[-90:]}"
