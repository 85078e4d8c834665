"""An expression of a filter cut into tokens, and texts written so that they are read as one."""

import re
from dataclasses import dataclass

from backend.domain.rollouts.filter_tree import FilterError

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


def clauses_of(expression: str) -> list[str] | None:
    """The parts that `and` joins, as they are written; None where `or` joins the whole or it cannot be read."""
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


def with_clause(expression: str, field: str, clause: str) -> str:
    """The expression with what it asks of a field replaced by one clause; by nothing when that is empty."""
    parts = clauses_of(expression)
    if parts is None:
        parts = [f"({expression})"]
    kept = [part for part in parts if subject_of(part) != field]
    return " and ".join([*kept, clause] if clause else kept)


def subject_of(clause: str) -> str:
    """The field that a clause of one test is about."""
    words = [token.text.lower() for token in tokens_of(clause) if token.kind == "word"]
    return next((word for word in words if word not in {"has", "not"}), "") if not clause.startswith("(") else ""
