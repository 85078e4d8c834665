"""Actions that an unknown environment may take, made from its schema: enough to see what it answers."""

import random
from collections.abc import Mapping
from typing import Any

_LEGAL = ("legal", "valid", "available", "possible", "allowed")
_WORDS = ("hello", "yes", "42", "print(1 + 1)", "e2e4")
_DEEPEST = 4


def sample_action(schema: Mapping[str, Any], observation: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
    """A random action; a value that the observation lists as legal, where it lists any."""
    action: dict[str, Any] = {}
    fields = properties_of(schema)
    legal = choices_in(observation)
    required = set(schema.get("required") or [])
    for name, field in fields.items():
        field = resolve(schema, field)
        if name not in required and "default" in field and len(required) > 0:
            continue
        action[name] = _value(schema, field, chance)
    target = next((name for name in action if name in required), next(iter(action), None))
    if legal and target is not None:
        name, values = legal
        fitting = [value for value in values if _fits(resolve(schema, fields[target]), value)]
        if fitting:
            action[target] = chance.choice(fitting)
    return action


def choices_in(observation: Mapping[str, Any]) -> tuple[str, list[Any]] | None:
    """The observation's field that lists what is legal now, and what it lists."""
    for name, value in observation.items():
        if name.lower().startswith(_LEGAL) and isinstance(value, list) and value and all(map(_is_plain, value)):
            return name, value
    return None


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """One kind of action where a package takes several: the call of a tool, else the first."""
    kinds = schema.get("oneOf") or schema.get("anyOf")
    if schema.get("properties") or not isinstance(kinds, list):
        return dict(schema)
    found = [resolve(schema, kind) for kind in kinds if isinstance(kind, dict)]
    calls = [kind for kind in found if "tool_name" in properties_of(kind)]
    return {**(calls or found or [{}])[0], "$defs": schema.get("$defs") or {}}


def properties_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields that an author cares about."""
    found = schema.get("properties")
    fields = found if isinstance(found, dict) else {}
    return {name: field for name, field in fields.items() if name != "metadata" and isinstance(field, dict)}


def resolve(schema: Mapping[str, Any], field: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Follow `$ref` into `$defs`, and take the first alternative that is not null."""
    if depth > _DEEPEST:
        return {}
    if isinstance(reference := field.get("$ref"), str):
        target = (schema.get("$defs") or {}).get(reference.rpartition("/")[2])
        outside = {key: value for key, value in field.items() if key != "$ref"}
        return {**resolve(schema, target, depth + 1), **outside} if isinstance(target, dict) else {}
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(field.get(key), list):
            parts = [resolve(schema, part, depth + 1) for part in field[key] if isinstance(part, dict)]
            chosen = next((part for part in parts if part.get("type") != "null"), {})
            return {**chosen, **{name: value for name, value in field.items() if name != key}}
    return dict(field)


def _fits(field: Mapping[str, Any], value: Any) -> bool:
    return isinstance(value, str) == (field.get("type") == "string")


def _value(schema: Mapping[str, Any], field: Mapping[str, Any], chance: random.Random, depth: int = 0) -> Any:
    if "const" in field:
        return field["const"]
    if isinstance(field.get("enum"), list) and field["enum"]:
        return chance.choice(field["enum"])
    match field.get("type"):
        case "integer":
            return chance.randint(*_bounds(field))
        case "number":
            low, high = _bounds(field)
            return round(chance.uniform(low, high), 2)
        case "boolean":
            return chance.random() < 0.5
        case "array":
            inner = resolve(schema, field.get("items") or {})
            return [_value(schema, inner, chance, depth + 1)] if depth < _DEEPEST and field.get("minItems") else []
        case "object":
            nested = properties_of(field)
            wanted = [name for name in nested if name in (field.get("required") or [])]
            if depth >= _DEEPEST:
                return {}
            return {name: _value(schema, resolve(schema, nested[name]), chance, depth + 1) for name in wanted}
        case "null":
            return None
        case _:
            return chance.choice(_WORDS)


def _bounds(field: Mapping[str, Any]) -> tuple[int, int]:
    low = field.get("minimum", field.get("exclusiveMinimum", 0))
    high = field.get("maximum", field.get("exclusiveMaximum", max(low, 0) + 6))
    return int(low), max(int(low), int(high))
