"""Check schemas of tools and arguments of calls. Both may be hostile. The library takes long to import."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from backend.domain.text import JsonObject

MAX_PARTS = 1000
"""Maximum number of objects in a schema; checking one needs at most half a millisecond."""
MAX_NESTING = 72
"""Nesting of objects and lists in a schema: two for each level of arguments, which is enough for their own limit. The
library recurses, and reaches Python's limit inside a part in Rust, which panics, at about three times this nesting."""
MAX_CHECKS = 20_000
"""Maximum number of keywords per validation; schemas can expand without end."""
MAX_NESTED_CHECKS = 100
"""Maximum number of keywords that are checked inside each other; a schema can refer to itself without end."""
MAX_COLLECTED = 20
"""Maximum number of problems of one call that are collected: each may hold a long text."""


class _TooMuchWork(Exception):
    pass


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
        if _work.left < 0 or _work.depth == MAX_NESTED_CHECKS:
            raise _TooMuchWork
        if keyword != "additionalProperties" or "patternProperties" not in schema:
            _work.depth += 1
            try:
                yield from check(validator, value, instance, schema) or ()
            finally:
                _work.depth -= 1

    return counted


_BY_EXPRESSION = {"pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems"}
"""Keywords that are left to the environment: a regular expression can take forever."""
_Validator = validators.create(
    Draft202012Validator.META_SCHEMA,
    {
        keyword: _counted(keyword, check)
        for keyword, check in Draft202012Validator.VALIDATORS.items()
        if keyword not in _BY_EXPRESSION
    },
    type_checker=Draft202012Validator.TYPE_CHECKER,
)


@lru_cache(maxsize=1024)
def schema_problem(text: str) -> tuple[str, list[str | int]] | None:
    """Explain why a text is not a schema of arguments, with the place in it; None if it is one."""
    if text.count("{") > MAX_PARTS:
        return f"has more than {MAX_PARTS:,} parts", []
    schema = json.loads(text)
    if _is_nested_deeper(schema, MAX_NESTING):
        return f"is nested more than {MAX_NESTING} times", []
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


def _is_nested_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested deeper. Descends level by level, without recursion."""
    level = [value]
    for _ in range(levels + 1):
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, (dict, list)) for each in level)


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


class ArgumentsCheck:
    """Checks calls against one schema."""

    def __init__(self, schema: JsonObject) -> None:
        self._validator: Validator = _Validator(schema, registry=Registry())

    def problems(self, arguments: JsonObject) -> list[tuple[str, str]] | None:
        """Return places in the arguments and what is wrong there; None if they cannot be checked."""
        _work.left, _work.depth = MAX_CHECKS, 0
        try:
            found = islice(self._validator.iter_errors(dict(arguments)), MAX_COLLECTED)
            errors = sorted(found, key=lambda error: list(map(str, error.path)))
        except (_TooMuchWork, RecursionError, Unresolvable, ArithmeticError):
            return None
        problems = []
        for error in errors:
            where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).lstrip(".")
            problems.append((where[:80], _short(error.message)))
        return problems
