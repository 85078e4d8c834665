"""Twenty rungs of arithmetic, from small sums to modular powers. Every problem is made from a seed."""

import random
import re
import zlib
from collections.abc import Callable
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

HELDOUT_SHARE = 5
"""One in this many problems belongs to the held-out split."""


class Problem(NamedTuple):
    text: str
    answer: Fraction


Maker = Callable[[random.Random], tuple[str, int | Fraction]]


def _add(low: int, high: int) -> Maker:
    def make(chance: random.Random) -> tuple[str, int]:
        a, b = chance.randint(low, high), chance.randint(low, high)
        return f"{a} + {b}", a + b

    return make


def _subtract(low: int, high: int) -> Maker:
    """Below zero on a higher rung."""

    def make(chance: random.Random) -> tuple[str, int]:
        a, b = chance.randint(low, high), chance.randint(low, high)
        return f"{a} - {b}", a - b

    return make


def _subtract_within(chance: random.Random) -> tuple[str, int]:
    a, b = chance.randint(30, 99), chance.randint(3, 29)
    return f"{a} - {b}", a - b


def _multiply(digits: tuple[int, int], other: tuple[int, int]) -> Maker:
    def make(chance: random.Random) -> tuple[str, int]:
        a, b = chance.randint(*digits), chance.randint(*other)
        return f"{a} * {b}", a * b

    return make


def _divide(chance: random.Random) -> tuple[str, int]:
    b, answer = chance.randint(3, 12), chance.randint(13, 99)
    return f"{b * answer} / {b}", answer


def _three_terms(chance: random.Random) -> tuple[str, int]:
    a, b, c = (chance.randint(12, 99) for _ in range(3))
    return f"{a} + {b} - {c}", a + b - c


def _precedence(chance: random.Random) -> tuple[str, int]:
    a, b, c = chance.randint(10, 99), chance.randint(3, 12), chance.randint(3, 12)
    sign = chance.choice((1, -1))
    return f"{a} {'+' if sign > 0 else '-'} {b} * {c}", a + sign * b * c


def _brackets(chance: random.Random) -> tuple[str, int]:
    a, b, c, d = chance.randint(11, 40), chance.randint(2, 10), chance.randint(3, 12), chance.randint(10, 99)
    return f"({a} - {b}) * {c} + {d}", (a - b) * c + d


def _remainder(chance: random.Random) -> tuple[str, int]:
    a, b = chance.randint(1000, 9999), chance.randint(31, 97)
    return f"the remainder of {a} divided by {b}", a % b


def _percent(chance: random.Random) -> tuple[str, int]:
    share, of = chance.choice((5, 10, 15, 20, 25, 30, 35, 40, 45, 60, 75, 80, 90)), 20 * chance.randint(8, 60)
    return f"{share} percent of {of}", share * of // 100


def _add_fractions(chance: random.Random) -> tuple[str, Fraction]:
    b, d = chance.sample(range(3, 13), 2)
    a, c = chance.randint(1, b - 1), chance.randint(1, d - 1)
    return f"{a}/{b} + {c}/{d}", Fraction(a, b) + Fraction(c, d)


def _multiply_fractions(chance: random.Random) -> tuple[str, Fraction]:
    b, d = chance.sample(range(3, 16), 2)
    a, c = chance.randint(2, 14), chance.randint(2, 14)
    return f"{a}/{b} * {c}/{d}", Fraction(a, b) * Fraction(c, d)


def _divisor(chance: random.Random) -> tuple[str, int]:
    shared = chance.randint(6, 48)
    a, b = (shared * n for n in chance.sample(range(3, 24), 2))
    return f"the greatest common divisor of {a} and {b}", gcd(a, b)


def _multiple(chance: random.Random) -> tuple[str, int]:
    a, b = chance.sample(range(12, 61), 2)
    return f"the least common multiple of {a} and {b}", lcm(a, b)


def _equation(chance: random.Random) -> tuple[str, int]:
    x, a, b = chance.randint(-30, 60), chance.randint(3, 19), chance.randint(-50, 99)
    return f"x, if {a} * x + {b} = {a * x + b}", x


def _series(chance: random.Random) -> tuple[str, int]:
    first, step, count = chance.randint(2, 30), chance.randint(2, 9), chance.randint(8, 20)
    terms = [first + step * n for n in range(count)]
    return f"the sum {terms[0]} + {terms[1]} + {terms[2]} + ... + {terms[-1]} (steps of {step})", sum(terms)


def _two_equations(chance: random.Random) -> tuple[str, int]:
    x, y = chance.randint(-15, 30), chance.randint(-15, 30)
    while True:
        a, b, c, d = (chance.randint(2, 9) for _ in range(4))
        if a * d != b * c:
            break
    return f"x, if {a} * x + {b} * y = {a * x + b * y} and {c} * x + {d} * y = {c * x + d * y}", x


def _power(chance: random.Random) -> tuple[str, int]:
    base, exponent, modulus = chance.randint(3, 29), chance.randint(5, 40), chance.randint(51, 199)
    return f"the remainder of {base} to the power of {exponent} divided by {modulus}", pow(base, exponent, modulus)


RUNGS: tuple[Maker, ...] = (
    _add(5, 40),
    _subtract_within,
    _multiply((3, 12), (6, 29)),
    _add(101, 999),
    _subtract(101, 999),
    _three_terms,
    _divide,
    _precedence,
    _multiply((12, 99), (12, 99)),
    _brackets,
    _percent,
    _remainder,
    _add_fractions,
    _multiply_fractions,
    _divisor,
    _equation,
    _multiple,
    _series,
    _two_equations,
    _power,
)
LEVELS = len(RUNGS)


def make_problem(seed: int, split: str, level: int) -> Problem:
    """A held-out problem never occurs in training, and no problem contains its answer."""
    chance = random.Random(f"{split}:{level}:{seed}")
    while True:
        text, answer = RUNGS[level](chance)
        is_heldout = zlib.crc32(text.encode()) % HELDOUT_SHARE == 0
        is_told = write(Fraction(answer)) in re.findall(r"-?\d+(?:/\d+)?", text)
        if is_heldout == (split == "heldout") and not is_told:
            return Problem(text, Fraction(answer))


def write(number: Fraction) -> str:
    """`57`, `-3` or `3/4`."""
    return str(number)


_NUMBER = re.compile(r"[+-]?\d{1,12}(\.\d{1,12})?(\s*/\s*\d{1,12})?")


def read(text: str) -> Fraction | None:
    """A whole number, a decimal or a fraction; thousands may be set apart by commas."""
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text.strip()).replace("\N{MINUS SIGN}", "-")
    if not _NUMBER.fullmatch(plain):
        return None
    top, _, bottom = plain.replace(" ", "").partition("/")
    if bottom and not int(bottom):
        return None
    return Fraction(top) / Fraction(bottom or "1")
