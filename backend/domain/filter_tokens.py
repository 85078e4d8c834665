"""An expression of a filter cut into tokens, and texts written so that they are read as one."""

import re
from dataclasses import dataclass

from backend.domain.filter_tree import FilterError

OR = re.compile(r"\bor\b", re.IGNORECASE)
"""Where an expression may have to be put in parentheses before more is added."""
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
class Token:
    """A piece of an expression with its place."""

    kind: str
    """`string`, `operator`, `mark`, `word` or `end`."""
    text: str
    start: int
    end: int

    @property
    def keyword(self) -> str:
        return self.text.lower() if self.kind == "word" and self.text.lower() in _KEYWORDS else ""


def quoted(text: str) -> str:
    """A text as a value of an expression."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def field_name(family: str, name: str) -> str:
    """`judge.strict`, `judge."strict one"`: a field of a family whose names are somebody's."""
    return f"{family}.{name}" if re.fullmatch(r"[\w.-]+", name) else f'{family}."{name.replace(chr(34), "")}"'


def tokens_of(expression: str) -> list[Token]:
    """With one at the end that says so. Raises FilterError for what is no token."""
    tokens, position = [], 0
    while position < len(expression):
        found = _TOKEN.match(expression, position)
        if found is None:
            rest = expression[position:]
            if not rest.strip():
                break
            start = position + len(rest) - len(rest.lstrip())
            what = (
                "This text has no closing quote."
                if rest.lstrip()[0] in "\"'"
                else f"`{rest.lstrip()[0]}` means nothing."
            )
            raise FilterError(what, start, len(expression) if "quote" in what else start + 1)
        kind = str(found.lastgroup)
        tokens.append(Token(kind, found[kind], found.start(kind), found.end(kind)))
        position = found.end()
    end = len(expression)
    return [*tokens, Token("end", "", end, end + 1)]


def unquoted(token: Token) -> str:
    """The text that a token stands for."""
    return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if token.kind == "string" else token.text
