"""The fields of a package's action and observation classes, read from its source."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["Action", "Observation"]

_WIRE_FIELDS = {"reward", "done", "metadata"}
"""What OpenEnv's base classes carry beside the fields; not part of what a template or a reply may name."""


@dataclass(frozen=True, slots=True)
class ModelFields:
    """The fields of all classes of one kind in a package."""

    kind: Kind
    fields: frozenset[str]


def fields_of(trees: Sequence[ast.Module], kind: Kind) -> ModelFields | None:
    """None when no such class can be found, or when one inherits from a class that is not in the package."""
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    bases = {name: [_last_name(base) for base in node.bases] for name, node in classes.items()}
    children: dict[str, list[str]] = {}
    for name, parents in bases.items():
        for parent in parents:
            children.setdefault(parent, []).append(name)
    derived = _reached(children.get(kind, ()), children)
    found: set[str] = set()
    for name in _reached(derived, {name: parents for name, parents in bases.items() if name != kind}):
        if name in classes and (name != kind or kind in derived):
            found.update(_own_fields(classes[name].body))
        elif name not in {kind, "BaseModel", "Generic", "ABC", "object"}:
            return None
    return ModelFields(kind, frozenset(found - _WIRE_FIELDS)) if derived else None


def _reached(start: Iterable[str], edges: Mapping[str, Sequence[str]]) -> set[str]:
    """All that a walk along the edges meets, the start included."""
    seen = set(start)
    waiting = list(seen)
    while waiting:
        for name in edges.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def _own_fields(body: Iterable[ast.stmt]) -> Iterable[str]:
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _last_name(base: ast.expr) -> str:
    """`Action` for `Action`, `types.Action` and `Action[int]`."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
