"""The arithmetic ladder: problems, exact comparison, partial credit."""

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
        if set(problem.text) <= set("0123456789+-*/() "):
            assert _exactly(problem.text) == problem.answer


def _exactly(text: str) -> Fraction:
    """Python's own arithmetic, on fractions."""
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
