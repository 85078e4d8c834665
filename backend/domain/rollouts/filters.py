"""The language of filters: `has flag and win = 0 and tokens > 200` into a small tree.

Pure: names, operators and values are checked here against the fields that there are; SQL is made elsewhere. A missing
value equals nothing: `=`, `<`, `~` and `in` do not hold for it, and `!=` does, because it is the opposite of `=`.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from backend.domain.rollouts.filter_tokens import Token, tokens_of, unquoted
from backend.domain.rollouts.filter_tree import (
    OPERATORS,
    And,
    Comparison,
    Field,
    FieldKind,
    FilterError,
    Has,
    Node,
    Not,
    Or,
    Value,
)

MAX_LENGTH = 2000
"""Characters of an expression."""
MAX_DEPTH = 20
"""Parentheses and `not`s inside of each other."""
MAX_TESTS = 60
MAX_VALUES = 200
"""Of one `in (…)`."""

TRUE_WORDS = frozenset({"yes", "true", "on"})
FALSE_WORDS = frozenset({"no", "false", "off"})
_METRIC = "metric."
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")


def parse(expression: str, fields: Mapping[str, Field]) -> Node | None:
    """The expression as a tree; None for a blank one. Raises FilterError."""
    if len(expression) > MAX_LENGTH:
        raise FilterError(f"This is longer than {MAX_LENGTH} characters.", MAX_LENGTH, len(expression))
    if unstorable := _UNSTORABLE.search(expression):
        raise FilterError("This has a character that no text can have.", unstorable.start())
    if not expression.strip():
        return None
    return _Parser(expression, fields).whole()


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, expression: str, fields: Mapping[str, Field]) -> None:
        self.fields = fields
        self.tokens = tokens_of(expression)
        self.position = 0
        self.depth = 0
        self.tests = 0

    @property
    def here(self) -> Token:
        return self.tokens[self.position]

    def next(self) -> Token:
        token = self.here
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def takes(self, *texts: str) -> bool:
        """Go past this keyword or mark, if it stands here."""
        found = (self.here.keyword or (self.here.text if self.here.kind == "mark" else "")) in texts
        if found:
            self.next()
        return found

    def whole(self) -> Node:
        node = self.either()
        if self.here.kind != "end":
            raise _wrong(self.here, f"Expected `and`, `or` or the end here, not `{self.here.text}`.")
        return node

    def either(self) -> Node:
        parts = self._chain("or", self.both)
        return parts[0] if len(parts) == 1 else Or(parts)

    def both(self) -> Node:
        parts = self._chain("and", self.one)
        return parts[0] if len(parts) == 1 else And(parts)

    def _chain(self, word: str, part: Callable[[], Node]) -> tuple[Node, ...]:
        parts = [part()]
        while self.takes(word):
            parts.append(part())
        return tuple(parts)

    def one(self) -> Node:
        """`not …`, `( … )` or a test."""
        start = self.here
        if self.takes("not"):
            self._deeper(start)
            node: Node = Not(self.one())
            self.depth -= 1
            return node
        if self.takes("("):
            self._deeper(start)
            node = self.either()
            if not self.takes(")"):
                raise _wrong(self.here, "A closing parenthesis is missing here.")
            self.depth -= 1
            return node
        return self.test()

    def _deeper(self, token: Token) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _wrong(token, f"Nested deeper than {MAX_DEPTH} levels.")

    def test(self) -> Node:
        self.tests += 1
        if self.tests > MAX_TESTS:
            raise _wrong(self.here, f"More than {MAX_TESTS} conditions.")
        has = self.takes("has")
        token = self.next()
        field = self._field(token)
        if has:
            return self._has(field)
        is_negated = self.here.keyword == "not" and self.tokens[self.position + 1].keyword == "in"
        if is_negated:
            self.next()
        if self.takes("in"):
            test = Comparison(field, self._allowed(field, "in"), self._list(field))
            return Not(test) if is_negated else test
        if self.here.kind != "operator":
            return self._bare(field, token)
        operator = self.next()
        sign = "=" if operator.text == "==" else operator.text
        return Comparison(field, self._allowed(field, sign, operator), (self._value(field, sign),))

    def _has(self, field: Field) -> Node:
        """`has flag = repeated_text` says the same as `flag = repeated_text`."""
        if self.here.kind != "operator":
            return Has(field)
        operator = self.next()
        sign = "=" if operator.text == "==" else operator.text
        return Comparison(field, self._allowed(field, sign, operator), (self._value(field, sign),))

    def _bare(self, field: Field, token: Token) -> Node:
        if field.kind is FieldKind.YES_NO:
            return Has(field)
        signs = " ".join(OPERATORS[field.kind])
        raise _wrong(
            self.here if self.here.kind != "end" else token,
            f"After `{field.name}` comes one of {signs}; `has {field.name}` asks whether there is one.",
        )

    def _field(self, token: Token) -> Field:
        if token.kind == "end":
            raise _wrong(token, "A condition is missing at the end, such as `reward > 0.5`.")
        if token.kind != "word" or token.keyword:
            raise _wrong(token, f"Expected the name of a field here, not `{token.text}`.")
        name = token.text.replace('"', "")
        if found := self.fields.get(name) or self.fields.get(name.lower()):
            return found
        if name.startswith(_METRIC) and len(name) > len(_METRIC):
            return Field(name, FieldKind.NUMBER)
        raise _wrong(token, f"There is no field `{_short(name)}`. {_possible(name, self.fields)}")

    def _allowed(self, field: Field, operator: str, token: Token | None = None) -> str:
        if operator not in OPERATORS[field.kind]:
            signs = " ".join(OPERATORS[field.kind])
            raise _wrong(token or self.here, f"`{field.name}` knows no `{operator}`: use one of {signs}.")
        return operator

    def _list(self, field: Field) -> tuple[Value, ...]:
        if not self.takes("("):
            raise _wrong(self.here, "After `in` come values in parentheses: `in (1, 2)`.")
        values = [self._value(field, "in")]
        while self.takes(","):
            values.append(self._value(field, "in"))
            if len(values) > MAX_VALUES:
                raise _wrong(self.here, f"More than {MAX_VALUES} values.")
        if not self.takes(")"):
            raise _wrong(self.here, "Expected `,` or `)` here.")
        return tuple(values)

    def _value(self, field: Field, operator: str) -> Value:
        token = self.next()
        if token.kind not in {"word", "string"}:
            said = "the end" if token.kind == "end" else f"`{token.text}`"
            raise _wrong(token, f"Expected {_wanted(field)} here, not {said}.")
        text = unquoted(token)
        match field.kind:
            case FieldKind.NUMBER:
                return _number(token, text, field)
            case FieldKind.YES_NO:
                return _yes_no(token, text, field)
            case FieldKind.CHOICE if operator != "~":
                return _choice(token, text, field)
            case _:
                if not text.strip():
                    raise _wrong(token, "This text is empty.")
                return text


def _number(token: Token, text: str, field: Field) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    if not math.isfinite(value):
        raise _wrong(token, f"`{field.name}` is a number: `{_short(text)}` is none.")
    return value


def _yes_no(token: Token, text: str, field: Field) -> bool:
    if text.lower() in TRUE_WORDS | FALSE_WORDS:
        return text.lower() in TRUE_WORDS
    raise _wrong(token, f"`{field.name}` is yes or no.")


def _choice(token: Token, text: str, field: Field) -> str:
    wanted = text.lower().replace(" ", "_").replace("-", "_")
    if wanted in field.choices:
        return wanted
    raise _wrong(token, f"`{field.name}` is never `{_short(text)}`. {_possible(wanted, field.choices)}")


def _wanted(field: Field) -> str:
    return {
        FieldKind.NUMBER: "a number",
        FieldKind.CHOICE: f"one of {', '.join(field.choices)}",
        FieldKind.YES_NO: "yes or no",
    }.get(field.kind, "a word or a text in quotes")


def _possible(name: str, known: Iterable[str]) -> str:
    """The nearest names first; all of them where they are few."""
    names: Sequence[str] = list(known)
    if near := difflib.get_close_matches(name[:100], names, n=3, cutoff=0.6):
        return f"Did you mean {' or '.join(f'`{each}`' for each in near)}?"
    return f"Possible: {', '.join(names[:40])}{' …' if len(names) > 40 else ''}."


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def _wrong(token: Token, message: str) -> FilterError:
    return FilterError(message, token.start, token.end)
