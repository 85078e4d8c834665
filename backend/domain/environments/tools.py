"""Tools: which calls a policy may make, how replies write them, and explanations of malformed ones.

Schemas and replies may both be hostile: nothing is fetched, no regular expression of theirs runs, and work has a bound.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Annotated, Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_TOOLS = 128
MAX_LISTED_CHARACTERS = 400_000
"""Of a whole list of tools, as JSON."""
MAX_PARTS = 1000
"""Maximum number of objects in a schema; checking one takes up to half a millisecond."""
MAX_LISTED_PARTS = 4000
MAX_DEPTH = 32
"""Of a call's arguments."""
MAX_CHECKS = 20_000
"""Maximum number of keywords per validation; schemas can expand without end."""
MAX_CALLS = 16
"""Of one reply."""
MAX_COLLECTED = 20
"""Problems of one call that are collected: each holds a text as long as what it is about."""
MAX_TOLD = 3
"""Maximum number of problems reported for one call."""

HOW = f"""\
You act by calling tools, exactly one call in a reply, written like this:
{BEGIN}{{"name": "…", "arguments": {{…}}}}{END}
The tools, with the JSON schema of their arguments:"""


class ToolsUnusable(ValueError):
    """The environment's list of tools cannot be used."""


class CallUnreadable(ValueError):
    """A reply carries no call that could be read."""


class _TooMuchWork(Exception):
    pass


class Tool(BaseModel):
    """One function that a policy may call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: str = Field(default="", max_length=20_000)
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""

    @field_validator("parameters")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            found = _schema_problem(json.dumps(schema))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {error}") from error
        if found is not None:
            message, path = found
            raise PydanticCustomError("json_schema", "{message}", {"message": message, "path": path})
        return schema

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Explain why the arguments are invalid; None if they are valid."""
        try:
            _work.left = MAX_CHECKS
            found = islice(self._validator.iter_errors(dict(arguments)), MAX_COLLECTED)
            errors = sorted(found, key=lambda error: list(map(str, error.path)))
        except (_TooMuchWork, RecursionError, Unresolvable, ArithmeticError):
            return f"The arguments of `{self.name}` cannot be checked against its schema."
        told = [_in_words(error) for error in errors[:MAX_TOLD]]
        more = f" (and {len(errors) - MAX_TOLD} more)" if len(errors) > MAX_TOLD else ""
        return f"`{self.name}` was not called: {'; '.join(told)}{more}." if told else None

    @cached_property
    def _validator(self) -> Any:
        return _Validator(self.parameters, registry=Registry())


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a reply."""

    name: str
    arguments: dict[str, Any]

    def problem(self, tools: Sequence[Tool]) -> str | None:
        """Why it cannot be made with these tools, or None."""
        tool = next((tool for tool in tools if tool.name == self.name), None)
        if tool is None:
            return f"There is no tool {self.name[:80]!r}; there are: {', '.join(tool.name for tool in tools)}."
        return tool.problem(self.arguments)


def write_call(name: str, arguments: Mapping[str, Any] | str) -> str:
    """The canonical text of a call. Text arguments are kept: an endpoint may send some that are not JSON."""
    told = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    text = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {told}}}'
    for tag in (BEGIN, END):  # inside a value they would end the call
        text = text.replace(tag, "\\u003c" + tag[1:])
    return BEGIN + text + END


def has_call(reply: str) -> bool:
    return BEGIN in reply


def split_calls(reply: str) -> tuple[str, list[Call], str]:
    """The text before the first call, the calls in their order, and the text after each of them, joined.

    Raises CallUnreadable, with what to do about it, when one of them cannot be read: then none is made.
    """
    before, *parts = reply.split(BEGIN)
    if not parts or reply.count(END) != len(parts):
        found = "no complete" if len(parts) <= 1 else f"{len(parts)} nested or incomplete"
        raise CallUnreadable(f"Found {found} {BEGIN}…{END}; write exactly one.")
    if len(parts) > MAX_CALLS:
        raise CallUnreadable(f"Found {len(parts)} {BEGIN}…{END}; at most {MAX_CALLS} are made of one reply.")
    if any(END not in part for part in parts):
        raise CallUnreadable(f"{END} appears before {BEGIN}.")
    bodies = [part.partition(END) for part in parts]
    return before, [_call(body) for body, _, _ in bodies], "".join(after for _, _, after in bodies)


_IN_API_WORDS = (
    (
        f"Found no complete {BEGIN}…{END}; write exactly one.",
        "No tool was called. Call one of the tools you were given.",
    ),
    (f"What stands in {BEGIN}", "What was sent as arguments"),
)


def in_api_words(text: str) -> str:
    """Explain a reply without a readable call to a policy whose endpoint supports tool calls."""
    for ours, theirs in _IN_API_WORDS:
        text = text.replace(ours, theirs)
    return text


def read_tools(listed: Any) -> tuple[Tool, ...]:
    """Tools as environments list them: OpenAI's, MCP's and our spelling. Raises ToolsUnusable."""
    try:
        text = json.dumps(listed)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolsUnusable(f"the list of tools is no JSON: {error}") from error
    if len(text) > MAX_LISTED_CHARACTERS:
        raise ToolsUnusable(
            f"the list of tools has {len(text):,} characters; at most {MAX_LISTED_CHARACTERS:,} are read"
        )
    if text.count("{") > MAX_LISTED_PARTS:
        raise ToolsUnusable(f"the list of tools has more than {MAX_LISTED_PARTS:,} objects")
    return _read_tools(text)


def render_tools(tools: Iterable[Tool]) -> str:
    """The tools and how to call them, for a policy that writes plain text."""
    return "\n".join([HOW, *(json.dumps(tool.model_dump(), ensure_ascii=False) for tool in tools)])


@lru_cache(maxsize=256)
def _read_tools(text: str) -> tuple[Tool, ...]:
    listed = json.loads(text)
    if not isinstance(listed, list) or len(listed) > MAX_TOOLS:
        raise ToolsUnusable(f"the tools must be a list of at most {MAX_TOOLS}")
    tools = tuple(_read_tool(item) for item in listed)
    if len({tool.name for tool in tools}) < len(tools):
        raise ToolsUnusable("two tools have the same name")
    return tools


def _read_tool(item: Any) -> Tool:
    described = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(described, dict):
        raise ToolsUnusable(f"{str(item)[:80]!r} describes no tool")
    spellings = (described.get(key) for key in ("parameters", "input_schema", "inputSchema"))
    schema = next((schema for schema in spellings if schema), {"type": "object"})
    try:
        return Tool(name=described.get("name", ""), description=described.get("description") or "", parameters=schema)
    except ValueError as error:
        raise ToolsUnusable(f"tool {str(described.get('name'))[:80]!r}: {str(error)[:300]}") from error


def _call(body: str) -> Call:
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_refuse)
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
    return Call(name, arguments)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """No reply hedges between two values of one key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _is_deeper(value: Any, limit: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return limit < 0 or any(_is_deeper(child, limit - 1) for child in children)


_work = threading.local()


def _counted(check: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _work.left -= 1
        if _work.left < 0:
            raise _TooMuchWork
        yield from check(validator, value, instance, schema) or ()

    return counted


def _additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if "patternProperties" not in schema:
        yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, value, instance, schema) or ()


def _unique_items(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Like the library's, which compares each pair of items where they cannot be sorted."""
    if not value or not isinstance(instance, list):
        return
    if not all(isinstance(item, str) for item in instance):
        _work.left -= len(instance) ** 2 // 20
        if _work.left < 0:
            raise _TooMuchWork
    yield from Draft202012Validator.VALIDATORS["uniqueItems"](validator, value, instance, schema) or ()


_KEYWORDS = dict(Draft202012Validator.VALIDATORS)
for _pattern in ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems"):
    del _KEYWORDS[_pattern]  # the environment's to check: a regular expression can take for ever
_KEYWORDS |= {"additionalProperties": _additional, "uniqueItems": _unique_items}
_Validator = validators.create(
    Draft202012Validator.META_SCHEMA,
    {keyword: _counted(check) for keyword, check in _KEYWORDS.items()},
    type_checker=Draft202012Validator.TYPE_CHECKER,
)


@lru_cache(maxsize=1024)
def _schema_problem(text: str) -> tuple[str, list[str | int]] | None:
    """Why this is no schema of arguments, and where in it."""
    if text.count("{") > MAX_PARTS:
        return f"has more than {MAX_PARTS:,} parts", []
    schema = json.loads(text)
    if schema.get("type", "object") != "object":
        return "the schema of a tool's arguments has `type: object`", ["type"]
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"is no JSON schema: {_short(error.message)}", list(error.path)
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):
            return f"refers to `{reference[:80]}`, which it does not hold (nothing is fetched)", []
    return None


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        for child in schema.values():
            yield from _references(child)
    elif isinstance(schema, list):
        for child in schema:
            yield from _references(child)


def _in_words(error: ValidationError) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".")
    return f"`{where[:80]}`: {_short(error.message)}" if where else _short(error.message)


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:90]} … {message[-90:]}"
