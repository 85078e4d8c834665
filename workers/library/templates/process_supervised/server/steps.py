"""What one step is, and which steps may follow a line. Replace it by the steps of your own task.

Here a line is a sum of terms such as `4 + 3 * 5 + 2`, and a step performs exactly one operation in it.
"""

import random
import re

_TOKEN = re.compile(r"\d{1,9}|[+*]")
_LINE = re.compile(r"\s*\d{1,9}(\s*[+*]\s*\d{1,9})*\s*")

Line = tuple[str, ...]
"""Numbers and operators in turn."""


def make_line(chance: random.Random, operations: int) -> Line:
    """A sum with one product in it."""
    numbers = [str(chance.randint(2, 12)) for _ in range(operations + 1)]
    operators = ["+"] * operations
    operators[chance.randrange(operations)] = "*"
    parts = [numbers[0]]
    for operator, number in zip(operators, numbers[1:], strict=True):
        parts += [operator, number]
    return tuple(parts)


def read_line(text: str) -> Line | None:
    """None when it is no line of numbers and operators. A leading `=` is allowed."""
    text = text.strip().removeprefix("=")
    return tuple(_TOKEN.findall(text)) if _LINE.fullmatch(text) else None


def write_line(line: Line) -> str:
    return " ".join(line)


def next_lines(line: Line) -> list[Line]:
    """All lines that one right step leads to: products first, sums in any order."""
    places = [n for n in range(1, len(line), 2) if line[n] == "*"] or list(range(1, len(line), 2))
    return [(*line[: n - 1], _result(*line[n - 1 : n + 2]), *line[n + 2 :]) for n in places]


def steps_needed(line: Line) -> int:
    return len(line) // 2


def answer_of(line: Line) -> Line:
    while len(line) > 1:
        line = next_lines(line)[0]
    return line


def right_steps(question: Line, lines: list[Line | None]) -> int:
    """How many lines hold, each following from the one before, up to the first that does not."""
    newest = question
    for count, line in enumerate(lines):
        if line is None or line not in next_lines(newest):
            return count
        newest = line
    return len(lines)


def _result(left: str, operator: str, right: str) -> str:
    return str(int(left) * int(right) if operator == "*" else int(left) + int(right))
