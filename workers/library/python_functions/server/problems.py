"""A problem: one family with its numbers, visible examples and hidden tests. All of it follows from the task."""

import json
import zlib
from dataclasses import dataclass
from random import Random
from string import Template
from typing import Any

from .families import FAMILIES, LEVELS, Arguments, Family

HIDDEN_TESTS = 12
EXAMPLES = 2
SAME_AT_MOST = 3
"""Maximum number of hidden tests with the same result: a constant should not pass."""
HELDOUT_SHARE = 5
"""One in this many problems belongs to the held-out split, whichever task draws it."""


@dataclass(frozen=True)
class Case:
    arguments: Arguments
    result: Any


@dataclass(frozen=True)
class Problem:
    family: Family
    k: int
    m: int
    examples: tuple[Case, ...]
    tests: tuple[Case, ...]
    """Hidden: inputs enter the sandbox, results never do."""

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def question(self) -> str:
        family = self.family
        shown = "\n".join(
            f"- {family.name}({', '.join(map(repr, case.arguments))}) is {case.result!r}" for case in self.examples
        )
        return (
            f"Write the function {family.name}({family.parameters}) -> {family.returns}.\n"
            f"{self._fill(family.statement)}\nFor example:\n{shown}"
        )

    def solution(self, body: str) -> str:
        """A function of the right name with this body."""
        indented = "\n".join("    " + line for line in self._fill(body).splitlines())
        return f"def {self.family.name}({self.family.parameters}) -> {self.family.returns}:\n{indented}\n"

    def _fill(self, text: str) -> str:
        return Template(text).substitute(k=self.k, m=self.m)


def make_problem(seed: int, split: str, level: int) -> Problem:
    """The same problem for the same arguments; a held-out statement never occurs in training."""
    if not 0 <= level < LEVELS:
        raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
    chance = Random(f"{split}:{level}:{seed}")
    families = [family for family in FAMILIES if family.level == level]
    while True:
        family = chance.choice(families)
        k, m = chance.choice(family.k), chance.choice(family.m)
        is_heldout = zlib.crc32(f"{family.name}:{k}:{m}".encode()) % HELDOUT_SHARE == 0
        if is_heldout == (split == "heldout"):
            return _with_cases(family, k, m, chance)


def _with_cases(family: Family, k: int, m: int, chance: Random) -> Problem:
    bare = Problem(family, k, m, (), ())
    function = compiled(bare.solution(family.gold), family.name)
    cases: list[Case] = []
    seen: set[str] = set()
    results: dict[str, int] = {}
    for attempt in range(400):
        arguments = family.inputs(chance, k)
        result = function(*json.loads(json.dumps(arguments)))
        key, shown = repr(arguments), json.dumps(result)
        is_fresh = key not in seen and (results.get(shown, 0) < SAME_AT_MOST or attempt > 200)
        if is_fresh:
            seen.add(key)
            results[shown] = results.get(shown, 0) + 1
            cases.append(Case(arguments, result))
        if len(cases) == HIDDEN_TESTS + EXAMPLES:
            break
    return Problem(family, k, m, tuple(cases[:EXAMPLES]), tuple(cases[EXAMPLES:]))


def compiled(source: str, name: str) -> Any:
    """Run one of this package's functions; never one of a policy."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope[name]
