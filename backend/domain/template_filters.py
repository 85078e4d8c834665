"""Filters, tests and methods for templates, each with Jinja's meaning and a bounded cost."""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace

from jinja2 import StrictUndefined, Undefined, filters, tests
from markupsafe import escape

from backend.domain.template_values import (
    Budget,
    BudgetExceeded,
    NotAvailable,
    Value,
    compare,
    contains,
    item_of,
    items_of,
)

MAX_WIDTH = 1000
"""Maximum width of a padded, indented or wrapped text, and of a formatted number."""
MAX_PRECISION = 20
_SLOW = 8
"""Cost of some filters per character, relative to copying it."""
_REFUSED = frozenset({"attr", "random", "pprint", "urlize", "xmlattr", "forceescape", "striptags", "urlencode"})

Filter = Callable[..., Value]


_LOOKUP: Value = SimpleNamespace(undefined=StrictUndefined, getitem=item_of)
"""Replaces Jinja's environment in filters."""


def _bounded(value: Value, limit: int, name: str) -> int:
    number = int(value)
    if abs(number) > limit:
        raise BudgetExceeded(f"{name} is at most {limit:,} here, not {str(number)[:20]}")
    return number


def _path(attribute: Value) -> Value:
    if isinstance(attribute, str) and len(attribute) > 200:
        raise BudgetExceeded("the name of an attribute has at most 200 characters")
    return attribute


def _getter(attribute: Value, default: Value = None) -> Callable[[Value], Value]:
    return filters.make_attrgetter(_LOOKUP, _path(attribute), default=default)


# filters on text


def _on_text(change: Callable[[str], Value], weight: int = 1) -> Filter:
    def filter_(budget: Budget, value: Value) -> Value:
        text = budget.text(value)
        budget.charge(weight * len(text))
        return change(text)

    return filter_


def _replace(budget: Budget, value: Value, old: Value, new: Value, count: int | None = None) -> str:
    text, old, new = budget.text(value), budget.text(old), budget.text(new)
    found = text.count(old)
    budget.charge(2 * len(text) + (found if count is None or count < 0 else min(found, count)) * len(new))
    return text.replace(old, new, -1 if count is None else count)


def _indent(budget: Budget, value: Value, width: Value = 4, first: bool = False, blank: bool = False) -> str:
    text = budget.text(value)
    if not isinstance(width, str):
        width = _bounded(width, 100, "an indentation")
    size = len(width) if isinstance(width, str) else width
    budget.charge(_SLOW * len(text) + (text.count("\n") + 1) * (size + 20))
    return str(filters.do_indent(text, width, first, blank))


def _trim(budget: Budget, value: Value, chars: str | None = None) -> str:
    text = budget.text(value)
    budget.charge(len(text) * (1 + len(chars or "")))
    return text.strip(chars)


def _truncate(
    budget: Budget,
    value: Value,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int | None = None,
) -> str:
    text = budget.text(value)
    budget.charge(2 * len(text))
    return filters.do_truncate(_LOOKUP, text, length, killwords, end, 5 if leeway is None else leeway)


def _wordwrap(
    budget: Budget,
    value: Value,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    text, wrapstring = budget.text(value), "\n" if wrapstring is None else wrapstring
    lines = len(text) // max(1, int(width)) + text.count("\n") + 1
    longest = max(map(len, text.splitlines()), default=0)
    budget.charge(20 * len(text) + lines * (len(wrapstring) + 200) + longest * longest // max(1, int(width)) // 20)
    width = _bounded(width, 10_000, "a width")
    return filters.do_wordwrap(_LOOKUP, text, width, break_long_words, wrapstring, break_on_hyphens)


_CONVERSION = re.compile(
    r"%(?:%|(?:\((?P<key>[^()]{1,100})\))?[-#0 +]{0,5}(?P<width>\d{0,5})(?:\.(?P<digits>\d{0,5}))?[diouxXeEfFgGcrsa])"
)


def _format(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> str:
    text = budget.text(value)
    for found in _CONVERSION.finditer(text):
        _bounded(found["width"] or 0, MAX_WIDTH, "a width")
        _bounded(found["digits"] or 0, MAX_WIDTH, "a number of digits")
        budget.charge(_SLOW + int(found["width"] or 0) + int(found["digits"] or 0))
        budget.charge_value([*args, *kwargs.values()])
    if "%" in _CONVERSION.sub("", text):
        raise NotAvailable("this format is not available: use `%s`, `%d` or `%.2f`, with plain widths")
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    if any(isinstance(each, Undefined) for each in (*args, *kwargs.values())):
        return "".join(str(each) for each in (*args, *kwargs.values()))
    return text % (kwargs or args)


def _tojson(budget: Budget, value: Value, indent: int | None = None) -> str:
    budget.charge_value(value)
    if indent is not None:
        indent = _bounded(indent, 16, "an indentation")
        budget.charge_value(value)
    text = json.dumps(value, sort_keys=True, indent=indent)
    budget.charge(len(text))
    for sign in "<>&'":
        text = text.replace(sign, f"\\u00{ord(sign):02x}")
    return text


# filters on collections


def _length(budget: Budget, value: Value) -> int:
    if isinstance(value, Undefined):
        budget.text(value)
    return len(value)


def _reverse(budget: Budget, value: Value) -> Value:
    if isinstance(value, str):
        budget.charge(len(value))
        return value[::-1]
    return items_of(budget, value)[::-1]


def _join(budget: Budget, value: Value, d: Value = "", attribute: Value = None) -> str:
    found = items_of(budget, value)
    if attribute is not None:
        found = list(map(_getter(attribute), found))
    separator = budget.text(d)
    budget.charge(len(separator) * len(found))
    words = [budget.text(each) for each in found]
    budget.charge(sum(map(len, words)))
    return separator.join(words)


def _sum(budget: Budget, value: Value, attribute: Value = None, start: Value = 0) -> Value:
    found = items_of(budget, value)
    if attribute is not None:
        found = list(map(_getter(attribute), found))
    if not isinstance(start, int | float) or not all(isinstance(each, int | float) for each in found):
        raise NotAvailable("`sum` adds numbers only")
    budget.charge_value(found)
    return sum(found, start)


def _with_attribute(function: Callable[..., Value], weight: int = 0) -> Filter:
    """Charge for all items, and bound the name of the attribute that they are compared by."""

    def filter_(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> Value:
        budget.charge_value(value)
        found = items_of(budget, value)
        budget.charge(len(found) * weight)
        for each in (*args, *kwargs.values()):
            _path(each)
        return function(_LOOKUP, found, *args, **kwargs)

    return filter_


def _dictsort(
    budget: Budget, value: Value, case_sensitive: bool = False, by: Value = "key", reverse: bool = False
) -> list[tuple[Value, Value]]:
    _mapping(budget, value)
    budget.charge(len(value) * 100)
    return filters.do_dictsort(value, case_sensitive, by, reverse)


def _mapping(budget: Budget, value: Value) -> dict[Value, Value]:
    if isinstance(value, Undefined):
        budget.text(value)
    if not isinstance(value, dict):
        raise TypeError("this needs a mapping")
    budget.charge_value(value)
    return value


def _batch(budget: Budget, value: Value, linecount: int, fill_with: Value = None) -> list[Value]:
    budget.charge(_bounded(linecount, 10_000, "a line"))
    return list(filters.do_batch(items_of(budget, value), linecount, fill_with))


def _slice(budget: Budget, value: Value, slices: int, fill_with: Value = None) -> list[Value]:
    budget.charge(20 * _bounded(slices, 10_000, "a number of slices"))
    return list(filters.sync_do_slice(items_of(budget, value), slices, fill_with))


def _map(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> list[Value]:
    found = items_of(budget, value)
    if not args and "attribute" in kwargs:
        return list(map(_getter(kwargs["attribute"], kwargs.get("default")), found))
    if not args:
        raise TypeError("map requires a filter argument")
    filter_ = named(FILTERS, args[0], "filter")
    budget.spend(len(found))
    return [filter_(budget, each, *args[1:], **kwargs) for each in found]


def _choose(*, by_attribute: bool, wanted: bool) -> Filter:
    def choose(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> list[Value]:
        found, getter = items_of(budget, value), _getter(None)
        if by_attribute:
            if not args:
                raise TypeError("missing the name of the attribute")
            getter, args = _getter(args[0]), args[1:]
        test = named(TESTS, args[0], "test") if args else lambda budget, each: bool(each)
        budget.spend(len(found))
        return [each for each in found if bool(test(budget, getter(each), *args[1:], **kwargs)) is wanted]

    return choose


def named(known: Mapping[str, Filter], name: Value, kind: str) -> Filter:
    if isinstance(name, str) and name in known:
        return known[name]
    if isinstance(name, str) and name in _REFUSED:
        raise NotAvailable(f"the {kind} `{name}` is not available here")
    raise NotAvailable(f"No {kind} named {str(name)[:60]!r}.")


def _default(budget: Budget, value: Value, default_value: Value = "", boolean: bool = False) -> Value:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


FILTERS: dict[str, Filter] = {
    **{
        function.__name__.removeprefix("_"): function
        for function in (
            *(_batch, _default, _dictsort, _format, _indent, _join, _length, _map, _replace, _reverse),
            *(_slice, _sum, _tojson, _trim, _truncate, _wordwrap),
        )
    },
    "abs": lambda budget, value: abs(value) if not isinstance(value, Undefined) else budget.text(value),
    "capitalize": _on_text(str.capitalize),
    "center": lambda budget, value, width=80: budget.text(value).center(_bounded(width, MAX_WIDTH, "a width")),
    "count": _length,
    "d": _default,
    "e": _on_text(lambda text: str(escape(text)), _SLOW),
    "escape": _on_text(lambda text: str(escape(text)), _SLOW),
    "filesizeformat": lambda budget, value, binary=False: filters.do_filesizeformat(value, binary),
    "first": lambda budget, value: next(
        iter(items_of(budget, value)), StrictUndefined("No first item, sequence was empty.")
    ),
    "float": lambda budget, value, default=0.0: (
        default if isinstance(value, str) and len(value) > MAX_WIDTH else filters.do_float(value, default)
    ),
    "groupby": _with_attribute(filters.sync_do_groupby, 100),
    "int": lambda budget, value, default=0, base=10: (
        default if isinstance(value, str) and len(value) > MAX_WIDTH else filters.do_int(value, default, base)
    ),
    "items": lambda budget, value: [] if isinstance(value, Undefined) else list(_mapping(budget, value).items()),
    "last": lambda budget, value: next(
        reversed(items_of(budget, value)), StrictUndefined("No last item, sequence was empty.")
    ),
    "list": items_of,
    "lower": _on_text(str.lower),
    "max": _with_attribute(filters.do_max),
    "min": _with_attribute(filters.do_min),
    "reject": _choose(by_attribute=False, wanted=False),
    "rejectattr": _choose(by_attribute=True, wanted=False),
    "round": lambda budget, value, precision=0, method="common": filters.do_round(
        value, _bounded(precision, MAX_PRECISION, "a precision"), method
    ),
    "safe": _on_text(str),
    "select": _choose(by_attribute=False, wanted=True),
    "selectattr": _choose(by_attribute=True, wanted=True),
    "sort": _with_attribute(filters.do_sort, 100),
    "string": _on_text(str),
    "title": _on_text(filters.do_title, _SLOW * 2),
    "unique": _with_attribute(lambda *args, **kwargs: list(filters.sync_do_unique(*args, **kwargs))),
    "upper": _on_text(str.upper),
    "wordcount": _on_text(filters.do_wordcount, _SLOW),
}


# tests


def _free(function: Callable[..., Value]) -> Filter:
    """Wrap a function that takes constant time."""
    return lambda budget, value: function(value)


_COMPARISONS = {
    "eq": "== eq equalto",
    "ne": "!= ne",
    "gt": "> gt greaterthan",
    "gteq": ">= ge",
    "lt": "< lt lessthan",
    "lteq": "<= le",
}
_JINJA_TESTS: dict[str, Value] = dict(tests.TESTS)
TESTS: dict[str, Filter] = {
    **{
        name: _free(_JINJA_TESTS[name])
        for name in (
            *("odd", "even", "defined", "undefined", "none", "boolean", "false", "true"),
            *("integer", "float", "string", "mapping", "number", "sequence", "iterable"),
        )
    },
    **{name: partial(compare, sign) for sign, names in _COMPARISONS.items() for name in names.split()},
    "divisibleby": lambda budget, value, num: tests.test_divisibleby(value, num),
    "in": lambda budget, value, seq: contains(budget, seq, value),
    "lower": _on_text(str.islower),
    "sameas": lambda budget, value, other: value is other,
    "upper": _on_text(str.isupper),
}


# methods


def _method(function: Callable[..., Value], weight: int = 1, *, is_search: bool = False) -> Filter:
    """Wrap a method. The time of a search grows with the product of both texts."""

    def call(budget: Budget, value: Value, *args: Value, **kwargs: Value) -> Value:
        given = [*args, *kwargs.values()]
        for each in (value, *given):
            if isinstance(each, Undefined):
                budget.text(each)
            budget.charge_value(each)
        if weight > 1:
            budget.charge(weight * len(value))
        if is_search:
            budget.charge(sum(len(value) * len(each) // _SLOW for each in given if isinstance(each, str)))
        return function(value, *args, **kwargs)

    return call


def _padded(function: Callable[..., str]) -> Filter:
    return lambda budget, value, width, *fill: function(value, _bounded(width, MAX_WIDTH, "a width"), *fill)


def _joined(budget: Budget, value: str, words: Value) -> str:
    found = items_of(budget, words)
    budget.charge_value(found)
    budget.charge(len(value) * len(found))
    return value.join(found)


def _with_replacements(budget: Budget, value: str, old: str, new: str, count: int = -1) -> str:
    if not isinstance(old, str) or not isinstance(new, str):
        raise TypeError("replace() takes two texts")
    return _replace(budget, value, old, new, int(count))


METHODS: dict[type, dict[str, Filter]] = {
    dict: {
        "get": lambda budget, value, key, default=None: value.get(key, default),
        "items": _free(dict.items),
        "keys": _free(dict.keys),
        "values": _free(dict.values),
    },
    list: {"count": _method(list.count), "index": _method(list.index)},
    tuple: {"count": _method(tuple.count), "index": _method(tuple.index)},
    str: {
        **{
            name: _method(getattr(str, name))
            for name in (
                *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal"),
                *("isdigit", "islower", "isnumeric", "isspace", "isupper", "lower", "removeprefix", "removesuffix"),
                *("startswith", "swapcase", "title", "upper"),
            )
        },
        **{name: _method(getattr(str, name), _SLOW) for name in ("partition", "split", "splitlines")},
        **{
            name: _method(getattr(str, name), _SLOW, is_search=True)
            for name in ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip")
        },
        **{name: _padded(getattr(str, name)) for name in ("center", "ljust", "rjust", "zfill")},
        "join": _joined,
        "replace": _with_replacements,
    },
}
METHOD_NAMES = frozenset(name for methods in METHODS.values() for name in methods)
