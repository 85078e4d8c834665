"""The filter language: `has flag and win = 0 and tokens > 200` is parsed into a small tree.

Pure: names, operators and values are checked against the fields of a run; `backend.rollouts.filters` makes the SQL. A
missing value equals nothing: `=`, `<`, `~` and `in` are false for it, and `!=` is true, because it negates `=`.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from backend.domain.rollouts.fields import OPERATORS, Family, Field, FieldKind, family_field

MAX_LENGTH = 2000
"""Characters of an expression."""
MAX_DEPTH = 20
"""Nested parentheses and `not`s."""
MAX_TESTS = 60
MAX_VALUES = 200
"""Values of one `in (…)`."""

TRUE_WORDS = frozenset({"yes", "true", "on"})
FALSE_WORDS = frozenset({"no", "false", "off"})
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
OR = re.compile(r"\bor\b", re.IGNORECASE)
"""An expression with `or` may need parentheses before a clause is added."""
_KEYWORDS = frozenset({"and", "or", "not", "in", "has"})
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<operator>!=|<=|>=|==|=|<|>|~)
    | (?P<mark>[(),])
    | (?P<word>[^\s()=!<>~,"']+(?:(?<=\.)"[^"]*")?)
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A day, or a second, from `start` until `end`, which is no part of it."""

    start: datetime
    end: datetime


Value = float | str | bool | DateSpan


@dataclass(frozen=True, slots=True)
class Comparison:
    """`field operator value`; `in` has several values."""

    field: Field
    operator: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Has:
    """The field has a value; a yes-or-no field is yes."""

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
    """A mistake in an expression, with its place."""

    def __init__(self, message: str, start: int = 0, end: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = start + 1 if end is None else end


def leaves_of(node: Node | None) -> list[Comparison | Has]:
    """Return all comparisons of the tree, from left to right."""
    match node:
        case None:
            return []
        case Comparison() | Has():
            return [node]
        case Not(part):
            return leaves_of(part)
        case And(parts) | Or(parts):
            return [test for part in parts for test in leaves_of(part)]


@dataclass(frozen=True, slots=True)
class FilterToken:
    """A piece of an expression with its place."""

    kind: str
    """`string`, `operator`, `mark`, `word` or `end`."""
    text: str
    start: int
    end: int
    keyword: str = ""
    """`and`, `or`, `not`, `in` or `has`, in lower case."""


def field_name(family: str, name: str) -> str:
    """The name of a field of a family, quoted if needed: `judge.strict`, `judge."strict one"`."""
    return f"{family}.{name}" if re.fullmatch(r"[\w.-]+", name) else f'{family}."{name.replace(chr(34), "")}"'


def tokens_of(expression: str) -> list[FilterToken]:
    """Split an expression into tokens and a final `end` token. Raises FilterError."""
    tokens, position = [], 0
    while position < len(expression):
        found = _TOKEN.match(expression, position)
        if found is None:
            rest = expression[position:]
            if not rest.strip():
                break
            start = position + len(rest) - len(rest.lstrip())
            if expression[start] in "\"'":
                raise FilterError("This text has no closing quote.", start, len(expression))
            raise FilterError(f"`{expression[start]}` is not part of the filter language.", start)
        kind = str(found.lastgroup)
        word = found[kind].lower()
        keyword = word if kind == "word" and word in _KEYWORDS else ""
        tokens.append(FilterToken(kind, found[kind], found.start(kind), found.end(kind), keyword))
        position = found.end()
    end = len(expression)
    return [*tokens, FilterToken("end", "", end, end + 1)]


def clauses_of(expression: str) -> list[str] | None:
    """The parts that `and` joins, as written. None if `or` joins them, or if the expression cannot be read."""
    try:
        tokens = tokens_of(expression)
    except FilterError:
        return None
    parts, start, depth = [], 0, 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")") if token.kind == "mark" else 0
        if depth == 0 and token.keyword == "or":
            return None
        if depth == 0 and (token.keyword == "and" or token.kind == "end"):
            parts.append(expression[start : token.start].strip())
            start = token.end
    return [part for part in parts if part]


def subject_of(clause: str) -> str:
    """Return the field of a clause with one comparison."""
    words = [token.text.lower() for token in tokens_of(clause) if token.kind == "word"]
    return next((word for word in words if word not in {"has", "not"}), "") if not clause.startswith("(") else ""


def parse(expression: str, fields: Mapping[str, Field]) -> Node | None:
    """Parse an expression into a tree; None if it is blank. Raises FilterError."""
    if len(expression) > MAX_LENGTH:
        raise FilterError(f"This is longer than {MAX_LENGTH} characters.", MAX_LENGTH, len(expression))
    if unstorable := _UNSTORABLE.search(expression):
        raise FilterError("This has an invalid character.", unstorable.start())
    if not expression.strip():
        return None
    parser = _Parser(expression, fields)
    node = parser.alternatives()
    if parser.here.kind != "end":
        raise parser.wrong(f"Expected `and`, `or` or the end here, not `{parser.here.text}`.")
    return node


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, expression: str, fields: Mapping[str, Field]) -> None:
        self.fields = fields
        self.tokens = tokens_of(expression)
        self.position = self.depth = self.tests = 0
        self.here = self.tokens[0]
        """The next token."""

    def wrong(self, message: str, token: FilterToken | None = None) -> FilterError:
        """Make an error at a token. Default: the next one."""
        token = token or self.here
        return FilterError(message, token.start, token.end)

    def next(self) -> FilterToken:
        token = self.here
        self.position = min(self.position + 1, len(self.tokens) - 1)
        self.here = self.tokens[self.position]
        return token

    def takes(self, text: str) -> bool:
        """Consume this keyword or mark if it is next."""
        found = (self.here.keyword or (self.here.text if self.here.kind == "mark" else "")) == text
        if found:
            self.next()
        return found

    def alternatives(self) -> Node:
        """Parts that `or` joins, each of them parts that `and` joins."""
        alternatives: list[Node] = []
        while not alternatives or self.takes("or"):
            parts = [self.part()]
            while self.takes("and"):
                parts.append(self.part())
            alternatives.append(parts[0] if len(parts) == 1 else And(tuple(parts)))
        return alternatives[0] if len(alternatives) == 1 else Or(tuple(alternatives))

    def part(self) -> Node:
        """`not …`, `( … )` or a comparison."""
        start = self.here
        is_negated = self.takes("not")
        if not is_negated and not self.takes("("):
            return self.comparison()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"Nested deeper than {MAX_DEPTH} levels.", start)
        node: Node = Not(self.part()) if is_negated else self.alternatives()
        if not is_negated and not self.takes(")"):
            raise self.wrong("A closing parenthesis is missing here.")
        self.depth -= 1
        return node

    def comparison(self) -> Node:
        """`field operator value`, `field in (…)`, `has field` or a yes-or-no field.

        `has flag = repeated_text` means the same as `flag = repeated_text`.
        """
        self.tests += 1
        if self.tests > MAX_TESTS:
            raise self.wrong(f"More than {MAX_TESTS} conditions.")
        has = self.takes("has")
        token = self.next()
        if token.kind == "end":
            raise self.wrong("A condition is missing at the end, such as `reward > 0.5`.", token)
        if token.kind != "word" or token.keyword:
            raise self.wrong(f"Expected the name of a field here, not `{token.text}`.", token)
        name = token.text.replace('"', "")
        family, _, key = name.partition(".")
        field = self.fields.get(name) or self.fields.get(name.lower())
        if field is None and family == Family.METRIC and key:
            field = family_field(Family.METRIC, key)
        if field is None:
            raise self.wrong(f"There is no field `{_short(name)}`. {_possible(name, self.fields)}", token)
        signs = OPERATORS[field.kind]
        if not has:
            is_negated = self.here.keyword == "not" and self.tokens[self.position + 1].keyword == "in"
            if is_negated:
                self.next()
            if self.takes("in"):
                if "in" not in signs:
                    raise self.wrong(f"`{field.name}` does not support `in`. Use one of {' '.join(signs)}.")
                if not self.takes("("):
                    raise self.wrong("`in` needs values in parentheses: `in (1, 2)`.")
                values = [self._value(field, "in")]
                while self.takes(","):
                    values.append(self._value(field, "in"))
                    if len(values) > MAX_VALUES:
                        raise self.wrong(f"More than {MAX_VALUES} values.")
                if not self.takes(")"):
                    raise self.wrong("Expected `,` or `)` here.")
                test = Comparison(field, "in", tuple(values))
                return Not(test) if is_negated else test
        if self.here.kind == "operator":
            operator = self.next()
            sign = "=" if operator.text == "==" else operator.text
            if sign not in signs:
                message = f"`{field.name}` does not support `{sign}`. Use one of {' '.join(signs)}."
                raise self.wrong(message, operator)
            return Comparison(field, sign, (self._value(field, sign),))
        if has or field.kind is FieldKind.YES_NO:
            return Has(field)
        raise self.wrong(
            f"`{field.name}` needs one of {' '.join(signs)}. `has {field.name}` checks whether it has a value.",
            self.here if self.here.kind != "end" else token,
        )

    def _value(self, field: Field, operator: str) -> Value:
        token = self.next()
        if token.kind not in {"word", "string"}:
            expected = {
                FieldKind.NUMBER: "a number",
                FieldKind.CHOICE: f"one of {', '.join(field.choices)}",
                FieldKind.YES_NO: "yes or no",
                FieldKind.DATE: "a date such as 2026-11-01",
            }.get(field.kind, "a word or a text in quotes")
            found = "the end" if token.kind == "end" else f"`{token.text}`"
            raise self.wrong(f"Expected {expected} here, not {found}.", token)
        text = token.text
        if token.kind == "string":
            text = re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
        match field.kind:
            case FieldKind.NUMBER:
                number = float(text) if _NUMBER.fullmatch(text) else math.inf
                if not math.isfinite(number):
                    raise self.wrong(f"`{field.name}` is a number, but `{_short(text)}` is not.", token)
                return number
            case FieldKind.YES_NO:
                if text.lower() not in TRUE_WORDS | FALSE_WORDS:
                    raise self.wrong(f"`{field.name}` is yes or no.", token)
                return text.lower() in TRUE_WORDS
            case FieldKind.DATE:
                try:
                    is_day = len(text) == 10 and bool(date.fromisoformat(text))
                    time = datetime.fromisoformat(text)
                    start = time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
                    return DateSpan(start, start + (timedelta(days=1) if is_day else timedelta(seconds=1)))
                except (ValueError, OverflowError):
                    message = f"`{field.name}` is a date such as 2026-11-01, but `{_short(text)}` is not."
                    raise self.wrong(message, token) from None
            case FieldKind.CHOICE if operator != "~":
                choice = text.lower().replace(" ", "_").replace("-", "_")
                if choice not in field.choices:
                    possible = _possible(choice, field.choices)
                    raise self.wrong(f"`{field.name}` is never `{_short(text)}`. {possible}", token)
                return choice
            case _:
                if not text.strip():
                    raise self.wrong("This text is empty.", token)
                return text


def _possible(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest names; all of them if none is near."""
    names = list(known)
    if near := difflib.get_close_matches(name[:100], names, n=3, cutoff=0.6):
        return f"Did you mean {' or '.join(f'`{each}`' for each in near)}?"
    return f"Possible: {', '.join(names[:40])}{' …' if len(names) > 40 else ''}."


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
