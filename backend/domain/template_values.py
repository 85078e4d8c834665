"""Values of templates: plain data, and a budget for operations on it.

Every operation on text or a collection is charged for its size before it runs, so that time and memory of a rendering
have a bound that does not depend on the template or on the data.
"""

import operator
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jinja2 import StrictUndefined, Undefined
from jinja2.runtime import LoopContext

MAX_STEPS = 100_000
"""Maximum number of expressions that one rendering evaluates."""
MAX_WORK = 8_000_000
"""Maximum number of characters that one rendering reads or writes. A value in a collection counts as `_VALUE`."""
MAX_BITS = 4096
"""Maximum size of a computed integer."""
_VALUE = 20

Value = Any
"""Plain data of a template, or one of the classes below."""
_PLAIN = frozenset({str, int, float, bool, type(None)})
_View = ItemsView | KeysView | ValuesView  # type: ignore[type-arg]  # for isinstance
_ATTRIBUTES = {kind: frozenset(dir(kind)) for kind in (dict, list, tuple, str, int, float, bool, type(None), range)}
_OF_LOOP = frozenset(
    {"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem"}
)


class BudgetExceeded(ValueError):
    """A rendering would take too long or too much memory."""


class NotAvailable(ValueError):
    """A template uses something that is not available in templates."""


@dataclass(slots=True)
class Budget:
    """Remaining steps and characters of one rendering."""

    steps: int = MAX_STEPS
    work: int = MAX_WORK
    max_steps: int = field(init=False)
    max_work: int = field(init=False)

    def __post_init__(self) -> None:
        self.max_steps, self.max_work = self.steps, self.work

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise BudgetExceeded(f"the template takes more than {self.max_steps:,} steps")

    def charge(self, characters: int) -> None:
        self.work -= characters
        if self.work < 0:
            raise BudgetExceeded(f"the template handles more than {self.max_work:,} characters")

    def charge_value(self, value: Value) -> Value:
        """Charge for the whole content of a value, so that nothing can grow by repeated doubling, and return it."""
        kind = type(value)
        if kind is str:
            self.charge(len(value))
            return value
        if kind in _PLAIN:
            return value
        pending = [value]
        while pending:
            part = pending.pop()
            if isinstance(part, str):
                self.charge(_VALUE + len(part))
                continue
            self.charge(_VALUE)
            if type(part) in _PLAIN:
                self.charge(part.bit_length() >> 2 if type(part) is int else 0)
            elif isinstance(part, dict):
                self.charge(_VALUE * len(part))
                pending.extend(part.keys())
                pending.extend(part.values())
            elif isinstance(part, list | tuple | _View):
                self.charge(_VALUE * len(part))
                pending.extend(part)
            elif isinstance(part, Namespace):
                raise NotAvailable("a namespace cannot be used as a value")
        return value

    def text(self, value: Value) -> str:
        """Return the value as Python's `str` writes it."""
        kind = type(value)
        if kind is str:
            return str(value)
        if not isinstance(value, Undefined | DeferredText):
            if kind not in _PLAIN and not isinstance(value, list | tuple | dict | range | _View):
                raise NotAvailable(f"{_kind(value)} cannot be printed")
            self.charge_value(value)
        return str(value)


class DeferredText:
    """A text that is computed when a template prints it. Subclasses define `__str__` and `__bool__`."""


@dataclass(eq=False, slots=True)
class Namespace:
    """Variables that stay set after a loop: `{% set found = namespace(any=false) %}`."""

    values: dict[str, Value]


def attribute_of(value: Value, name: str) -> Value:
    """`value.name`: a field of a mapping, never an attribute of a Python object."""
    kind = type(value)
    if kind is dict:
        if name in _ATTRIBUTES[dict]:
            raise NotAvailable(f"`.{name}` is not a field here; write `['{name}']` for a field of this name")
        return value[name] if name in value else StrictUndefined(obj=value, name=name)
    if kind is LoopContext:
        if name not in _OF_LOOP:
            raise NotAvailable(f"`loop` has no `{name}` here")
        return getattr(value, name)
    if kind is Namespace:
        return value.values.get(name, StrictUndefined(obj=value, name=name))
    if isinstance(value, Undefined):
        _fail(value)
    if isinstance(value, tuple) and name in getattr(value, "_fields", ()):  # a group of the filter `groupby`
        return getattr(value, name)
    return _absent(value, name)


def item_of(value: Value, key: Value) -> Value:
    """`value[key]`: a field of a mapping, or an item of a list or of a text."""
    if isinstance(value, Undefined):
        _fail(value)
    if isinstance(key, Undefined):
        _fail(key)
    if isinstance(value, dict | list | tuple | str | range):
        try:
            return value[key]
        except (LookupError, TypeError):
            pass
    if isinstance(value, Namespace | LoopContext | tuple) and isinstance(key, str):
        return attribute_of(value, key)
    return _absent(value, key)


def _absent(value: Value, name: Value) -> Value:
    known = _ATTRIBUTES.get(type(value), frozenset())
    if isinstance(name, str) and (name in known or name.startswith("__")):
        raise NotAvailable(f"`{name[:40]}` of {_kind(value)} is not available in a template")
    return StrictUndefined(obj=value, name=name)


def items_of(budget: Budget, value: Value) -> list[Value]:
    """Return the items of a value for a loop or a filter."""
    if isinstance(value, Undefined):
        return list(value)
    if not isinstance(value, list | tuple | dict | str | range | _View):
        raise TypeError(f"{_kind(value)} is not iterable")
    budget.charge(_VALUE * len(value))
    return list(value)


def _fail(value: Undefined) -> NoReturn:
    _ = value.field  # raises UndefinedError in Jinja's words
    raise NotAvailable("an undefined value cannot be used")


def _kind(value: Value) -> str:
    return "none" if value is None else f"a value of type {type(value).__name__}"


# operators


def add(budget: Budget, left: Value, right: Value) -> Value:
    if isinstance(left, str | list | tuple) and type(left) is type(right):
        budget.charge_value(left)
        budget.charge_value(right)
        joined: Value = left
        return joined + right
    return _add_numbers(budget, left, right)


def concatenate(budget: Budget, parts: list[Value]) -> str:
    texts = list(map(budget.text, parts))
    budget.charge(sum(map(len, texts)))
    return "".join(texts)


def on_numbers(sign: str, compute: Callable[..., Value]) -> Callable[..., Value]:
    """Return an operator that refuses everything but numbers, and integers that are too large."""

    def operate(budget: Budget, *sides: Value) -> Value:
        for side in sides:
            if isinstance(side, Undefined):
                _fail(side)
            if not isinstance(side, int | float):
                raise NotAvailable(f"operator {sign} is not available on these values")
            if isinstance(side, int) and side.bit_length() > MAX_BITS:
                raise BudgetExceeded(f"integers have at most {MAX_BITS:,} bits here")
        return compute(*sides)

    return operate


_add_numbers = on_numbers("+", operator.add)


def compare(sign: str, budget: Budget, left: Value, right: Value) -> bool:
    if sign in {"in", "notin"}:
        found = contains(budget, right, left)
        return found if sign == "in" else not found
    if type(left) not in _PLAIN or type(right) not in _PLAIN:
        budget.charge_value(left)
        budget.charge_value(right)
    elif type(left) is str and type(right) is str:
        budget.charge(min(len(left), len(right)) >> 3)
    result: bool = _COMPARE[sign](left, right)
    return result


def contains(budget: Budget, container: Value, value: Value) -> bool:
    if isinstance(container, Undefined):
        return value in list(container)
    if not isinstance(container, list | tuple | dict | str | range | _View):
        raise TypeError(f"{_kind(container)} is not iterable")
    if not isinstance(container, dict):
        budget.charge_value(container)
    budget.charge_value(value)
    return value in container


_COMPARE: dict[str, Callable[[Value, Value], Value]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
