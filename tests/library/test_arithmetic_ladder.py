"""The arithmetic ladder: problems, exact comparison, partial credit."""

import math
import re
from fractions import Fraction

import pytest

from backend.environments.library import load_package
from tests.library.conftest import Serve
from tests.library.play import heldout, step
from tests.library.pure import module_of

ladder = module_of("arithmetic_ladder", "ladder")


@pytest.mark.parametrize("level", range(20))
def test_a_rung_is_right_deterministic_and_split(level: int):
    train = [ladder.make_problem(n, "train", level) for n in range(60)]
    tested = [ladder.make_problem(10_000_000 + n, "heldout", level) for n in range(60)]
    assert train == [ladder.make_problem(n, "train", level) for n in range(60)]
    assert not {problem.text for problem in train} & {problem.text for problem in tested}
    for problem in train:
        assert _solve(problem.text) == problem.answer, problem.text


def _solve(text: str) -> Fraction:
    """The answer, computed in another way than the environment does."""
    numbers = [int(number) for number in re.findall(r"-?\d+", text)]
    match text.partition(" ")[0], *numbers:
        case "x,", a, b, c:
            return Fraction(c - b, a)
        case "x,", a, b, c, d, e, f:
            return Fraction(c * e - b * f, a * e - b * d)
    match re.sub(r"-?\d+", "N", text), *numbers:
        case "N percent of N", share, whole:
            return Fraction(share * whole, 100)
        case "the remainder of N divided by N", a, b:
            return Fraction(math.fmod(a, b))
        case "the remainder of N to the power of N divided by N", a, b, c:
            return Fraction(a**b % c)
        case "the greatest common divisor of N and N", a, b:
            return Fraction(max(n for n in range(1, a + 1) if a % n == b % n == 0))
        case "the least common multiple of N and N", a, b:
            return Fraction(next(n for n in range(a, a * b + 1, a) if n % b == 0))
        case "the sum N + N + N + ... + N (steps of N)", first, _, _, last, step:
            return Fraction(sum(range(first, last + 1, step)))
        case _:
            return _exactly(text)


def _exactly(text: str) -> Fraction:
    """Python's own arithmetic, on fractions."""
    assert set(text) <= set("0123456789+-*/() "), text
    words = text.replace("(", "( ").replace(")", " )").replace("/", " / ").split()
    return eval(" ".join(f"Fraction({word})" if word.isdigit() else word for word in words), {"Fraction": Fraction})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("57", Fraction(57)),
        (" 1,234.0 ", Fraction(1234)),
        ("6/8", Fraction(3, 4)),
        ("0.75", Fraction(3, 4)),
        ("\N{MINUS SIGN}3", Fraction(-3)),
        ("1/0", None),
        ("12 or 13", None),
        ("1e9", None),
        ("9" * 50, None),
    ],
)
def test_an_answer_is_read_by_its_value(text: str, number: Fraction | None):
    assert ladder.read(text) == number


async def test_what_an_answer_is_worth(serve: Serve):
    async with serve(load_package("arithmetic_ladder")) as server, server.session() as session:
        paid = {}
        for name, change in (("right", 0), ("off by ten", 10), ("off by one", 1), ("far", 5000)):
            await session.reset(heldout(8), timeout=10)
            right = int((await session.state(timeout=10))["answer"])
            paid[name] = (await step(session, answer=f"{right + change:,}")).rewards
    assert paid["right"] == {"correct": 1.0, "near": 1.0, "ending": 1.0}
    assert paid["off by ten"]["ending"] == 1.0
    assert 0 < paid["off by ten"]["near"] < paid["off by one"]["near"] < 1
    assert paid["off by one"]["correct"] == paid["off by one"]["ending"] == 0.0
    assert paid["far"] == {"correct": 0.0, "near": 0.0, "ending": 1.0}
