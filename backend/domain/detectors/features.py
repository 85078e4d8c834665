"""Features of replies and programs that the learned detector reads. Each is present or absent, and all are bounded."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

from backend.domain.detectors.catalogue.hard_coded import bits_of, hard_coded_cases
from backend.domain.detectors.code import sources_of, trees_of
from backend.domain.detectors.run_view import RolloutRow
from backend.domain.detectors.spec import Mark

VERSION = 1
"""Version of the features. A model that was trained on other ones is not used."""
MOST_FEATURES = 3000
"""Per rollout."""
MOST_TOKENS = 800
"""Per rollout; a short reply among many has 50."""
MOST_REPLY_CHARACTERS = 20_000
MOST_PROMPT_CHARACTERS = 50_000
MOST_PROGRAMS = 5
MOST_NODES = 3000
"""Nodes of all syntax trees of a rollout together."""
_MOST_LETTERS = 30
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s\0\ud800-\udfff]|_")  # no characters that a database cannot store
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]{3,}")
_STEPS = (1, 2, 4, 8, 16, 32, 64)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)


def features_of(row: RolloutRow) -> dict[str, Mark | None]:
    """Return the features of a rollout, at most MOST_FEATURES, each with its first place in the replies if it has one.

    Sequences of one to three words, numbers by their digits, a count as "at least" some powers of two.
    """
    found: dict[str, Mark | None] = {}
    for name in chain(_shape_of(row), _program_features(row)):
        found.setdefault(name, None)
    for turn, reply in enumerate(row.replies):
        if len(found) >= MOST_FEATURES:
            break
        tokens = _tokens(reply, max(50, MOST_TOKENS // len(row.replies)))
        for first in range(len(tokens)):
            for end in range(first + 1, min(first + 3, len(tokens)) + 1):
                name = f"“{' '.join(word for word, _, _ in tokens[first:end])}”"
                if name not in found and len(found) < MOST_FEATURES:
                    found[name] = Mark(turn, tokens[first][1], tokens[end - 1][2])
    return found


def _tokens(text: str, limit: int) -> list[tuple[str, int, int]]:
    """Return the words, numbers and signs with their places: the first and the last ones of a long text."""
    matches = list(_TOKEN.finditer(text[:MOST_REPLY_CHARACTERS]))
    if len(matches) > limit:
        matches = [*matches[: limit // 2], *matches[-(limit // 2) :]]
    return [
        (
            "9" * min(len(word), 4) if word.isdigit() and word not in {"0", "1", "2"} else word,
            match.start(),
            match.end(),
        )
        for match in matches
        if (word := match.group()[:_MOST_LETTERS].lower())
    ]


def _shape_of(row: RolloutRow) -> Iterator[str]:
    if row.stop_reason:
        yield f"stop reason {row.stop_reason}"
    text = "\n".join(reply[:MOST_REPLY_CHARACTERS] for reply in row.replies[:MOST_TOKENS])
    yield from _at_least("turns", len(row.replies))
    yield from _at_least("characters / 50", len(text) // 50)
    yield from _at_least("comments", text.count("# "))


def _program_features(row: RolloutRow) -> Iterator[str]:
    """Yield the structure of the programs in the replies and actions, and counts that hard-coded answers raise."""
    counts: Counter[str] = Counter()
    literals: set[str] = set()
    programs, nodes = 0, 0
    for _, tree in islice(trees_of(sources_of(row)), MOST_PROGRAMS):
        programs += 1
        cases, returns = hard_coded_cases(tree)
        counts["hard-coded cases"] += len(cases)
        counts["other returns"] += returns
        bits = sum(max(0.0, min(case.bits, 20.0) + min(bits_of(case.answer), 8.0) - 7.0) for case in cases)
        counts["bits of hard-coded cases"] += int(bits)
        waiting: list[tuple[ast.AST, str]] = [(tree, "")]
        while waiting and nodes < MOST_NODES:
            node, parent = waiting.pop()
            nodes += 1
            kind = type(node).__name__
            yield f"{parent} > {kind}"
            counts["loops"] += isinstance(node, _LOOPS)
            counts["conditions"] += isinstance(node, ast.If | ast.IfExp)
            counts["functions"] += isinstance(node, ast.FunctionDef)
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    yield f"call {name[:_MOST_LETTERS]}"
                case ast.Return(value=ast.Constant()):
                    counts["literal returns"] += 1
                case ast.Compare(ops=[operator, *_], comparators=[ast.Constant(), *_]):
                    yield f"{type(operator).__name__} literal"
                    counts["comparisons with literals"] += 1
                case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
                    literals.update(_WORD.findall(str(value)[:200]) if len(literals) < MOST_NODES else ())
            waiting += [(child, kind) for child in ast.iter_child_nodes(node)]
    yield from _at_least("programs", programs)
    if not programs:
        return
    prompt = "\n".join(row.prompts)[:MOST_PROMPT_CHARACTERS]
    words = set(_WORD.findall(prompt)) if literals else set()
    counts["literals from the prompt"] = sum(word in words for word in literals if len(word) > 1)
    for name in (
        *("hard-coded cases", "other returns", "bits of hard-coded cases", "loops", "conditions", "functions"),
        *("literal returns", "comparisons with literals", "literals from the prompt"),
    ):
        yield from _at_least(name, counts[name])


def _at_least(name: str, count: int) -> Iterator[str]:
    if not count:
        yield f"no {name}"
    for step in _STEPS:
        if count >= step:
            yield f"{name} ≥ {step}"
