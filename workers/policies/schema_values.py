"""Values that a JSON schema allows: any one by chance, or the first."""

import random
from typing import Any

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WIDE = 100
"""Highest number tried where the schema names none."""
_LONGEST_LIST = 8


def followed(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Through `$ref` and the first real branch of `anyOf`."""
    if reference := schema.get("$ref"):
        return dict(root.get("$defs", {}).get(str(reference).rpartition("/")[2], {}))
    for branch in schema.get("anyOf", []):
        if branch.get("type") != "null":
            return followed(branch, root)
    return schema


def random_value(schema: dict[str, Any], chance: random.Random) -> Any:
    if options := _options(schema):
        return chance.choice(options)
    match _kind(schema):
        case "integer":
            low, high = _bounds(schema)
            return chance.randint(round(low), round(high))
        case "number":
            return chance.uniform(*_bounds(schema))
        case "boolean":
            return chance.random() < 0.5
        case "array":
            count = _least(schema) + chance.randint(0, 1)
            return [random_value(_items(schema), chance) for _ in range(count)]
        case "object":
            return {name: random_value(part, chance) for name, part in _required(schema)}
        case _:
            return "".join(chance.choice(_LETTERS) for _ in range(chance.randint(1, 16)))


def _options(schema: dict[str, Any]) -> list[Any]:
    return list(schema.get("enum") or ([schema["const"]] if "const" in schema else []))


def first_value(schema: dict[str, Any]) -> Any:
    if options := _options(schema):
        return options[0]
    match _kind(schema):
        case "integer" | "number":
            return _bounds(schema)[0]
        case "boolean":
            return False
        case "array":
            return [first_value(_items(schema)) for _ in range(_least(schema))]
        case "object":
            return {name: first_value(part) for name, part in _required(schema)}
        case _:
            return "a"


def _kind(schema: dict[str, Any]) -> Any:
    """Of several types the first that is not null."""
    kind = schema.get("type")
    return next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    items = schema.get("items")
    return items if isinstance(items, dict) else {}


def _least(schema: dict[str, Any]) -> int:
    return min(int(schema.get("minItems", 0)), _LONGEST_LIST)


def _required(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    properties = schema.get("properties", {})
    parts = [(name, properties.get(name)) for name in schema.get("required", [])]
    return [(name, part if isinstance(part, dict) else {}) for name, part in parts]


def _bounds(schema: dict[str, Any]) -> tuple[float, float]:
    step = 1 if schema.get("type") == "integer" else 0
    low = schema.get("minimum", schema.get("exclusiveMinimum", -step) + step)
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + _WIDE + step) - step)
    return low, high
