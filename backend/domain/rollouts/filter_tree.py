"""What a filter says, as a tree: fields, tests of them, and how tests are joined."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class FieldKind(StrEnum):
    NUMBER = "number"
    CHOICE = "choice"
    """One of `Field.choices`."""
    WORD = "word"
    """A name of somebody's: a detector."""
    TEXT = "text"
    """Only `~`."""
    YES_NO = "yes_no"


OPERATORS: Mapping[FieldKind, tuple[str, ...]] = {
    FieldKind.NUMBER: ("=", "!=", "<", "<=", ">", ">=", "in"),
    FieldKind.CHOICE: ("=", "!=", "~", "in"),
    FieldKind.WORD: ("=", "!=", "~", "in"),
    FieldKind.TEXT: ("~",),
    FieldKind.YES_NO: ("=", "!="),
}

Value = float | str | bool


@dataclass(frozen=True, slots=True)
class Field:
    """Something to ask about a rollout."""

    name: str
    kind: FieldKind
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """`field operator value`; `in` has several values."""

    field: Field
    operator: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Has:
    """There is a value; of a yes-or-no field: it is yes."""

    field: Field


@dataclass(frozen=True, slots=True)
class Not:
    part: "Node"


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple["Node", ...]


Node = Comparison | Has | Not | And | Or


class FilterError(ValueError):
    """What is wrong with an expression, and where."""

    def __init__(self, message: str, start: int = 0, end: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = start + 1 if end is None else end


def leaves_of(node: Node | None) -> list[Comparison | Has]:
    """Every test and `has` in the tree, from left to right."""
    match node:
        case None:
            return []
        case Comparison() | Has():
            return [node]
        case Not(part):
            return leaves_of(part)
        case And(parts) | Or(parts):
            return [test for part in parts for test in leaves_of(part)]
