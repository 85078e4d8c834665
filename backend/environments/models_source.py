"""The fields of a package's action and observation classes, read from its source."""

import ast
from collections.abc import Iterable, Sequence
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
    found: set[str] = set()
    is_any = False
    for node in classes.values():
        fields, is_kind, is_known = _inherited(node, classes, kind, frozenset())
        if not is_kind:
            continue
        if not is_known:
            return None
        is_any = True
        found |= fields
    return ModelFields(kind, frozenset(found - _WIRE_FIELDS)) if is_any else None


def _inherited(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], kind: Kind, seen: frozenset[str]
) -> tuple[set[str], bool, bool]:
    """(fields, derives from the kind's base, every base is known)"""
    fields = set(_own_fields(node.body))
    is_kind, is_known = False, True
    for base in node.bases:
        name = _last_name(base)
        if name == kind:
            is_kind = True
        elif name in classes and name not in seen | {node.name}:
            more, base_is_kind, base_is_known = _inherited(classes[name], classes, kind, seen | {node.name})
            fields |= more
            is_kind, is_known = is_kind or base_is_kind, is_known and base_is_known
        elif name not in {"BaseModel", "Generic", "ABC", "object"}:
            is_known = False
    return fields, is_kind, is_known


def _own_fields(body: Iterable[ast.stmt]) -> Iterable[str]:
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _last_name(base: ast.expr) -> str:
    """`Action` for `Action`, `types.Action` and `Action[int]`."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
