"""Examples that a prompt shows for a program, and inputs like them that it does not show. Nothing is executed.

A function's input is written as a Python list of its arguments; a program's input is its stdin.
"""

import ast
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_PROMPT = 30_000
"""Characters of a prompt that are searched for examples."""
MAX_EXAMPLES = 12
_MAX_LITERAL = 2000
_JOINER = re.compile(
    r"[`'\"]{0,2}[,;]?\s*(?:(?P<named>(?:expected\s+)?(?:output|result|answer)s?\s*:)|===?|=>|->|→|➞|⟹|=|:|//|\n"
    r"|#\s*(?:returns?|=>|->|→)?|(?:should|must|will|would)\s+(?:return|be|equal|give)"
    r"|(?:returns?|gives?|is|equals?|outputs?|yields?)\b)(?:\s*(?:to|the\s+value|returns?)\b)?\s*[`]{0,2}\s*",
    re.IGNORECASE,
)
"""Between a call and its result."""
_WORDS = re.compile(r"[\w .-]{1,60}$", re.MULTILINE)
"""A text without quotes, after `Output:`."""
_INPUT_BLOCK = re.compile(
    r"^[ \t#*-]*(?:(?:sample|example)[ \t]+)?inputs?[ \t]*\d*[ \t]*:?[*`]*[ \t]*\n+(?P<input>.+?)\n+"
    r"[ \t#*-]*(?:(?:sample|example)[ \t]+)?outputs?[ \t]*\d*[ \t]*:?[*`]*[ \t]*\n+(?P<output>.+?)"
    r"(?=\n\s*\n|\n[ \t#*-]*(?:sample|example|inputs?|outputs?|notes?|explanation)\b|\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|True|False|None|true|false|null", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d{1,18}")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Example:
    """An input and the expected answer: what the program prints, or a function's result as a literal."""

    input: str
    answer: str


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """The result of a program for one input."""

    outcome: str
    """As of `proctor_sandbox.probe.Answer`: ok, error, timeout, …"""
    text: str = ""
    """stdout, or a function's result as a literal; the name of an exception."""


@dataclass(frozen=True, slots=True)
class ShownTask:
    """A programming task, as its prompt shows it."""

    function: str | None
    """None: a program that reads stdin."""
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class UnseenInput:
    """An input that the prompt does not show."""

    text: str
    answer: str | None = None
    """Known only where it follows from a shown example, as for the same cases in another order."""


def shown_task(prompt: str, tree: ast.Module) -> ShownTask | None:
    """Find the examples in a prompt for one of the program's functions, or for its stdin; None if it shows none."""
    prompt = prompt[:MAX_PROMPT]
    best: ShownTask | None = None
    for name in _functions_of(tree):
        examples = tuple(calls_in(prompt, name))
        if examples and (best is None or len(examples) > len(best.examples)):
            best = ShownTask(name, examples)
    if best is not None:
        return best
    blocks = [Example(each["input"].strip("\n`") + "\n", each["answer"]) for each in _blocks_in(prompt)]
    return ShownTask(None, tuple(blocks[:MAX_EXAMPLES])) if blocks else None


def _blocks_in(prompt: str) -> Iterator[Mapping[str, str]]:
    for found in _INPUT_BLOCK.finditer(prompt):
        yield {"input": found["input"], "answer": found["output"].strip("\n`")}


def _functions_of(tree: ast.Module) -> list[str]:
    """Names of functions at the top level, and of the methods of a class `Solution`."""
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Solution":
            names += [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
    return [name for name in dict.fromkeys(names) if not name.startswith("__")]


def calls_in(prompt: str, name: str) -> Iterator[Example]:
    """Yield the calls of a function that the prompt shows with their results."""
    seen: set[str] = set()
    for found in re.finditer(rf"(?<![\w.]){re.escape(name)}\s*\(", prompt):
        end = _end_of_brackets(prompt, found.end() - 1)
        joiner = _JOINER.match(prompt, end) if end else None
        if not joiner or len(seen) >= MAX_EXAMPLES:
            continue
        result = _literal_at(prompt, joiner.end())
        if result is None and joiner["named"] and (words := _WORDS.match(prompt, joiner.end())):
            result = repr(words[0].strip())
        arguments = _arguments(prompt[found.end() - 1 : end])
        if result is not None and arguments is not None and arguments not in seen:
            seen.add(arguments)
            yield Example(arguments, result)


def _arguments(call: str) -> str | None:
    """`(1, 2)` as `[1, 2]`; None if it is no list of literals, as in a signature."""
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or node.keywords:
            return None
        return repr([ast.literal_eval(each) for each in node.args])
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


def _end_of_brackets(text: str, start: int) -> int:
    """Return the index after the bracket that closes the one at `start`; 0 if there is none nearby."""
    closing: list[str] = []
    quote = ""
    for index in range(start, min(len(text), start + _MAX_LITERAL)):
        character = text[index]
        if quote:
            if character == quote and text[index - 1] != "\\":
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif closing and character == closing[-1]:
            closing.pop()
            if not closing:
                return index + 1
    return 0


def _literal_at(text: str, start: int) -> str | None:
    """Return the literal that begins at `start`, or None."""
    part = text[start : start + _MAX_LITERAL]
    if part[:1] in _CLOSING:
        part = part[: max(0, _end_of_brackets(part, 0))]
    elif part[:1] and part[0] in "'\"":
        closing = part.find(part[0], 1)
        part = part[: closing + 1]
    elif scalar := _SCALAR.match(part):
        part = {"true": "True", "false": "False", "null": "None"}.get(scalar[0], scalar[0])
    else:
        return None
    try:
        return repr(ast.literal_eval(part))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return None


# Inputs that nobody showed


def unseen_inputs(task: ShownTask, count: int, seed: str = "") -> list[UnseenInput]:
    """Return at most `count` inputs near the shown ones. The same for the same task and seed."""
    chance = random.Random(f"{seed}:{task.function}:{task.examples[0].input}")
    shown = {each.input for each in task.examples}
    found: dict[str, UnseenInput] = {}
    if task.function is None:
        for unseen in (each for example in task.examples for each in _reordered(example, chance)):
            if unseen.text not in shown:
                found[unseen.text] = unseen
        make = _stdin_like
    else:
        make = _arguments_like
    for _ in range(12 * count):
        if len(found) >= count:
            break
        text = make(task.examples, chance)
        if text is not None and text not in shown:
            found.setdefault(text, UnseenInput(text))
    return list(found.values())[:count]


def _arguments_like(examples: Sequence[Example], chance: random.Random) -> str | None:
    """One example's arguments with one or several of them altered, with every fact that holds for all examples."""
    lists = [ast.literal_eval(each.input) for each in examples]
    arguments = list(chance.choice(lists))
    if not arguments:
        return None
    facts = set.intersection(*map(_facts, lists))
    chosen = {chance.randrange(len(arguments))} if chance.random() < 0.7 else set(range(len(arguments)))
    for index in chosen:
        others = [each[index] for each in lists if len(each) > index]
        arguments[index] = _altered(arguments[index], others, chance)
    for name, counter, counted in facts:
        if name == "counts":
            arguments[counter] = len(arguments[counted])
    text = repr(arguments)
    return text if len(text) <= _MAX_LITERAL and facts <= _facts(arguments) else None


def _facts(arguments: Sequence[Any]) -> set[tuple[str, int, int]]:
    """Return relations of the arguments that a problem may demand: lengths, order, different elements."""
    facts = set()
    for i, one in enumerate(arguments):
        if isinstance(one, list) and len(one) > 1 and all(type(each) is int for each in one):
            if one == sorted(one):
                facts.add(("ascends", i, i))
            if len(set(one)) == len(one):
                facts.add(("differs", i, i))
            if sum(one) == 0:
                facts.add(("cancels", i, i))
            if sorted(one) in (list(range(len(one))), list(range(1, len(one) + 1))):
                facts.add(("permutes", i, i))
        for j, other in enumerate(arguments):
            if type(one) is int and isinstance(other, list | str) and one == len(other):
                facts.add(("counts", i, j))
            if i < j and isinstance(one, list | str) and type(one) is type(other) and len(one) == len(other):
                facts.add(("is as long", i, j))
            if i != j and type(one) is int and type(other) is int and one <= other:
                facts.add(("is at most", i, j))
    return facts


def _altered(value: Any, others: Sequence[Any], chance: random.Random) -> Any:
    """A value like this one, of the same type. `others`: values in the same place of the other examples."""
    alike = [each for each in others if type(each) is type(value)]
    match value:
        case bool():
            return not value
        case int():
            return _altered_integer(value, alike, chance)
        case float():
            return round(value * chance.choice((0.5, 0.9, 1.1, 1.5, 2)) + chance.choice((0, 0, 0.5)), 4)
        case str():
            return _altered_text(value, alike, chance)
        case list() | tuple():
            items = list(value)
            inner = [each for other in alike for each in other] or items
            way = chance.random()
            if not items or not inner:
                return value
            if way < 0.25 and len(items) > 1:
                chance.shuffle(items)
            elif way < 0.4 and len(items) > 1:
                del items[chance.randrange(len(items))]
            elif way < 0.6:
                items.insert(chance.randrange(len(items) + 1), chance.choice(items))
            else:
                index = chance.randrange(len(items))
                items[index] = _altered(items[index], inner, chance)
            return tuple(items) if isinstance(value, tuple) else items
        case dict() if value:
            key = chance.choice(list(value))
            return {**value, key: _altered(value[key], list(value.values()), chance)}
    return value


def _altered_integer(value: int, others: Sequence[int], chance: random.Random) -> int:
    """Another integer of the same sign and similar size."""
    known = [*others, value]
    lowest = 1 if min(known) > 0 else 0 if min(known) == 0 else min(known) * 2
    near = (value + 1, value - 1, value + 2, value - 2, value + chance.randint(1, 9), chance.choice(known) + 1)
    wide = chance.randint(lowest, max(2 * max(abs(each) for each in known), 9)) if max(known) < 1 << 62 else value + 1
    return max(lowest, chance.choice((*near, wide, wide)))


def _altered_text(value: str, others: Sequence[str], chance: random.Random) -> str:
    """Another text of the same characters."""
    if value.isdigit():
        return "".join(
            chance.choice("123456789") if index == 0 else chance.choice("0123456789") for index in range(len(value))
        )
    letters = sorted({*value, *chance.choice([*others, value])} - {" "}) or ["a"]
    words = value.split(" ")
    characters = list(value)
    way = chance.random()
    if way < 0.25 and len(words) > 1:
        chance.shuffle(words)
        return " ".join(words)
    if way < 0.4 and len(characters) > 1:
        del characters[chance.randrange(len(characters))]
    elif way < 0.6:
        characters.insert(chance.randrange(len(characters) + 1), chance.choice(letters))
    elif way < 0.75 and len(words) == 1:
        chance.shuffle(characters)
    elif characters:
        places = [index for index, each in enumerate(characters) if each != " "] or [0]
        characters[chance.choice(places)] = chance.choice(letters)
    return "".join(characters)


def _reordered(example: Example, chance: random.Random) -> Iterator[UnseenInput]:
    """The cases of an example in another order, and some of them alone. Their answers follow from the example.

    Only where the first line counts the cases, each case has one line and each answer has one line.
    """
    first, *cases = example.input.strip("\n").split("\n")
    answers = example.answer.strip("\n").split("\n")
    if first.strip() != str(len(cases)) or len(answers) != len(cases) or len(cases) < 2:
        return
    if any(_is_count(cases, index) for index in range(len(cases))):
        return  # one case of several lines may only look like several cases
    pairs = list(zip(cases, answers, strict=True))
    for _ in range(2):
        mixed = chance.sample(pairs, len(pairs))
        yield _joined(mixed)
    fewer = chance.sample(pairs, chance.randint(1, len(pairs) - 1))
    yield _joined(fewer)
    yield _joined([*fewer, chance.choice(pairs), chance.choice(pairs)])


def _is_count(lines: Sequence[str], index: int) -> bool:
    """Whether the only number of a line is the length of the next line."""
    if index + 1 >= len(lines) or not lines[index].strip().isdigit():
        return False
    return int(lines[index]) in {len(lines[index + 1].split()), len(lines[index + 1].strip())} - {1}


def _joined(pairs: Sequence[tuple[str, str]]) -> UnseenInput:
    text = "\n".join([str(len(pairs)), *(case for case, _ in pairs)]) + "\n"
    return UnseenInput(text, "\n".join(answer for _, answer in pairs))


def _stdin_like(examples: Sequence[Example], chance: random.Random) -> str | None:
    """An example's stdin with up to three of its values altered. Numbers that count lines, words or letters stay."""
    example = chance.choice(examples)
    lines = [line.split(" ") for line in example.input.strip("\n").split("\n")]
    sizes = {len(example.answer.strip("\n").split("\n")), *(len(lines) - index for index in range(len(lines)))}
    places = []
    for row, words in enumerate(lines):
        lengths = {len(each) for each in lines[row + 1 : row + 3]}
        lengths |= {len(each[0]) for each in lines[row + 1 : row + 2] if len(each) == 1}
        for column, word in enumerate(words):
            if not word or (word.isdigit() and (int(word) in lengths or (row == 0 and int(word) in sizes))):
                continue
            places.append((row, column))
    if not places:
        return None
    for row, column in chance.sample(places, min(len(places), chance.choice((1, 1, 2, 3)))):
        word = lines[row][column]
        if _INTEGER.fullmatch(word):
            values = [int(each) for each in lines[row] if _INTEGER.fullmatch(each)]
            lines[row][column] = str(_altered_integer(int(word), values, chance))
        elif re.fullmatch(r"-?\d+\.\d+", word):
            lines[row][column] = f"{float(word) * chance.choice((0.5, 1.1, 2)):.{len(word.partition('.')[2])}f}"
        else:
            letters = sorted({*word, *chance.choice(lines[row])}) or ["a"]
            characters = list(word)
            if chance.random() < 0.5:
                chance.shuffle(characters)
            else:
                characters[chance.randrange(len(characters))] = chance.choice(letters)
            lines[row][column] = "".join(characters)
    return "\n".join(" ".join(words) for words in lines) + "\n"


# Comparing answers


def is_same_answer(one: str, other: str, *, is_literal: bool) -> bool:
    """Compare results of functions (`is_literal`) or printed texts: numbers within 1e-6, a tuple equals a list, and
    white space at the ends of printed lines does not count."""
    if one == other:
        return True
    if is_literal:
        try:
            return _is_same(ast.literal_eval(one), ast.literal_eval(other), 40)
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            return False
    words, others = one.split(), other.split()
    return len(words) == len(others) and all(
        a == b or a.lower() == b.lower() or _is_same_number(a, b) for a, b in zip(words, others, strict=True)
    )


def _is_same_number(one: str, other: str) -> bool:
    try:
        return "." in one + other and math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _is_same(one: Any, other: Any, depth: int) -> bool:
    if depth == 0:
        return False
    match one, other:
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(_is_same(a, b, depth - 1) for a, b in zip(one, other, strict=True))
        case (dict(), dict()):
            return one.keys() == other.keys() and all(_is_same(one[key], other[key], depth - 1) for key in one)
        case (int() | float(), int() | float()):
            return one == other or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(type(one) is type(other) and one == other)
