"""Locate the problems of a manifest in the lines of its YAML."""

from dataclasses import dataclass
from typing import Any

import yaml

from backend.domain.yaml_text import compose_yaml


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a manifest, and where."""

    message: str
    path: str = ""
    """Dotted, e.g. `proctor.rewards.win`."""
    line: int = 1
    """1-based."""


class ManifestInvalid(ValueError):
    """The manifest cannot be used."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"line {p.line}: {p.path + ': ' if p.path else ''}{p.message}" for p in problems))


def problem_of(node: yaml.Node | None, details: Any) -> Problem:
    path = [part for part in details["loc"] if isinstance(part, int) or not str(part).startswith("<")]
    path += details.get("ctx", {}).get("path", [])
    kind = details["type"]
    if kind == "extra_forbidden":
        message = "unknown key"
    elif kind == "missing":
        message = "missing"
    else:
        message = details["msg"].removeprefix("Value error, ")
    line = _line(node, path)
    if kind == "template" and _is_block_text(node, path):
        line += details["ctx"]["line"]
    return Problem(message, _dotted(node, path), line)


def _is_block_text(node: yaml.Node | None, path: list[str | int]) -> bool:
    """Whether the value is a block (`|`), so that its text starts on the next line."""
    for part in path:
        step = _child(node, part)
        node = step[1] if step else None
    return isinstance(node, yaml.ScalarNode) and node.style == "|"


def _dotted(node: yaml.Node | None, path: list[str | int]) -> str:
    """The path in the author's words: a reward column by its name, not by its number."""
    words = []
    for part in path:
        step = _child(node, part)
        key, node = step or (None, None)
        words.append(str(key.value if isinstance(key, yaml.ScalarNode) and isinstance(part, int) else part))
    return ".".join(words)


def line_of(text: str, *path: str | int) -> int:
    """The line on which a manifest that can be parsed says this."""
    return _line(compose_yaml(text), list(path))


def _line(node: yaml.Node | None, path: list[str | int]) -> int:
    """The line of the deepest node that the path reaches."""
    line = 1
    for part in path:
        step = _child(node, part)
        if step is None:
            break
        key, node = step
        line = key.start_mark.line + 1
    return line


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for position, (key, value) in enumerate(node.value):
            if key.value == part or position == part:
                return key, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None
