"""Read YAML that users write as plain JSON values, with limits on size, depth and aliases.

A text is scanned event by event before a tree is built, so that hostile input is measured before it can grow.
"""

import math
import re
from typing import Any, ClassVar

import yaml

from backend.domain.text import InvalidAtLine

MAX_CHARACTERS = 262_144
"""Maximum number of characters in a text."""
MAX_EVENTS = 20_000
"""Maximum number of values and of starts and ends of collections."""
MAX_DEPTH = 64
MAX_NODES = 50_000
"""Maximum number of values with aliases expanded."""
MAX_INTEGER = 2**63 - 1
_MAX_NUMBER = 40
"""Characters of a number."""
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_CORE = "tag:yaml.org,2002:"

_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlInvalid(InvalidAtLine):
    """The text cannot be used."""


class _Loader(_Fast):  # type: ignore[misc]  # libyaml's loader, where PyYAML has it
    """Without timestamps, sets and bytes: types that JSON does not have become text or are refused."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_CORE}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the tree of a text with its lines; None for an empty text. Raises YamlInvalid."""
    if len(text) > MAX_CHARACTERS:
        raise YamlInvalid(f"has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read")
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if count > MAX_EVENTS:
                raise YamlInvalid(f"has more than {MAX_EVENTS:,} values", _line_at(event.start_mark))
            if depth > MAX_DEPTH:
                raise YamlInvalid(f"is nested deeper than {MAX_DEPTH} levels", _line_at(event.start_mark))
        loader = _Loader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except YamlInvalid:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(error, 1) from error
    if node is not None and _unfolded(node, {}) > MAX_NODES:
        raise YamlInvalid("its aliases unfold to too much, or without end", _line_at(node.start_mark))
    return node


def read_yaml(text: str) -> Any:
    """Return the value of a text: None, bool, int, float, str, list or dict. Raises YamlInvalid."""
    return construct(compose_yaml(text))


def construct(node: yaml.Node | None) -> Any:
    """Return the value of a tree of `compose_yaml`. Merge keys are expanded in the tree. Raises YamlInvalid."""
    if node is None:
        return None
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise _invalid(error, _line_at(node.start_mark)) from error
    finally:
        loader.dispose()


def _unfolded(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Count the nodes with aliases expanded; infinite if one contains itself."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        sizes[id(node)] = 1 + sum(_unfolded(part, sizes) for part in parts)
    return sizes[id(node)]


def _invalid(error: Exception, line: int) -> YamlInvalid:
    """Return the error with its own line if it has one."""
    if isinstance(error, yaml.MarkedYAMLError):
        line = _line_at(error.problem_mark or error.context_mark)
        return YamlInvalid(f"not YAML: {error.problem or error.context}", line)
    return YamlInvalid(f"not YAML: {str(error)[:300]}", line)


def _line_at(mark: Any) -> int:
    return int(mark.line) + 1 if mark else 1


def _scalar(loader: Any, node: yaml.ScalarNode) -> object:
    """Read a value within its limits. Errors have a line."""
    value: Any
    try:
        match node.tag.removeprefix(_CORE):
            case "int":
                value = loader.construct_yaml_int(node) if len(node.value) <= _MAX_NUMBER else math.inf
                if abs(value) > MAX_INTEGER:
                    raise ValueError("an integer has at most 64 bits")
            case "float":
                if len(node.value) > 400:
                    raise ValueError("a number has at most 400 characters")
                value = loader.construct_yaml_float(node)
                if not math.isfinite(value):
                    raise ValueError("a number must be finite")
            case "bool":
                value = loader.construct_yaml_bool(node)
            case _:
                value = loader.construct_scalar(node)
                if _UNSTORABLE.search(value):
                    raise ValueError("a text has a character that cannot be stored")
    except (ValueError, LookupError, OverflowError) as error:
        words = str(error) if type(error) is ValueError else "has a value that its tag does not allow"
        raise yaml.constructor.ConstructorError(None, None, words, node.start_mark) from error
    return value


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[str, object]:
    """Read a mapping. Its keys are text as it is written, like those of JSON: `12: a` has the key "12"."""
    loader.flatten_mapping(node)
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            key.tag = f"{_CORE}str"
    mapping: dict[str, object] = loader.construct_mapping(node, deep=True)
    return mapping


def _refused(loader: Any, node: yaml.Node) -> object:
    kind = str(node.tag).removeprefix(_CORE)[:60]
    raise yaml.constructor.ConstructorError(None, None, f"values of type `{kind}` are not available", node.start_mark)


for _kind in ("int", "float", "str", "bool"):
    _Loader.add_constructor(f"{_CORE}{_kind}", _scalar)
_Loader.add_constructor(f"{_CORE}map", _mapping)
for _kind in ("timestamp", "binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"{_CORE}{_kind}", _refused)
_Loader.add_constructor(None, _refused)
