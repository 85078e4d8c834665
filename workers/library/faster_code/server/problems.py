"""A problem: one slow program with its number, hidden tests and a large input for timing. It follows from the task."""

import zlib
from dataclasses import dataclass
from functools import cache
from random import Random
from string import Template
from typing import Any

from .families import FAMILIES, LEVELS, Arguments, Family

SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 10, 11)
"""Sizes of the hidden tests' inputs."""
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
    tests: tuple[Case, ...]
    """Hidden."""

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def question(self) -> str:
        return (
            f"{self._fill(self.family.statement)}\nThis program is right, and slow. "
            f"Write {self.name} so that it gives the same results much faster.\n\n{self.slow}"
        )

    @property
    def slow(self) -> str:
        return self._function(self.family.slow)

    @property
    def fast(self) -> str:
        return self._function(self.family.fast)

    def large(self) -> Case:
        """The input that is timed."""
        arguments = large_input(self.family)
        return Case(arguments, _compiled(self.fast, self.name)(*arguments))

    def _function(self, body: str) -> str:
        lines = self._fill(body).splitlines()
        return f"def {self.name}({self.family.parameters}):\n" + "".join(
            f"    {line}\n" if line else "\n" for line in lines
        )

    def _fill(self, text: str) -> str:
        return Template(text).substitute(k=self.k)


@cache
def large_input(family: Family) -> Arguments:
    """The same for all problems of a family, so that the slow body is timed once."""
    return family.inputs(Random(family.name), family.large)


def make_problem(seed: int, split: str, level: int) -> Problem:
    """The same problem for the same arguments; a held-out program never occurs in training."""
    if not 0 <= level < LEVELS:
        raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
    chance = Random(f"{split}:{level}:{seed}")
    families = [family for family in FAMILIES if family.level == level]
    while True:
        family = chance.choice(families)
        k = chance.choice(family.k)
        is_heldout = zlib.crc32(f"{family.name}:{k}".encode()) % HELDOUT_SHARE == 0
        if is_heldout == (split == "heldout"):
            break
    bare = Problem(family, k, ())
    function = _compiled(bare.slow, family.name)
    inputs = [family.inputs(chance, size) for size in SIZES]
    return Problem(family, k, tuple(Case(arguments, function(*arguments)) for arguments in inputs))


def _compiled(source: str, name: str) -> Any:
    """Run one of this package's functions; never one of a policy."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    return scope[name]
