"""Limits on what a training run may use."""

import pytest

from backend.domain.training.budget import BudgetChoice, Spending

ALL = BudgetChoice(minutes=10, tokens=1000, rollouts=50)


def test_without_limits_nothing_is_used_up() -> None:
    spent = Spending(1e9, 10**12, 10**12)
    assert spent.used_up(BudgetChoice()) is None
    assert spent.summary(BudgetChoice()) == ""
    assert spent.as_json(BudgetChoice()) == {}


@pytest.mark.parametrize(
    ("spent", "which"),
    [(Spending(10.0, 0, 0), "10 minutes"), (Spending(0, 1000, 0), "1,000 tokens"), (Spending(0, 0, 51), "50 rollouts")],
)
def test_the_first_limit_that_is_reached_says_so(spent: Spending, which: str) -> None:
    assert spent.used_up(ALL) == f"The budget of {which} is used up."


def test_used_and_left_are_reported() -> None:
    spent = Spending(2.25, 900, 60)
    assert spent.summary(ALL) == "2.2 of 10 minutes, 900 of 1,000 tokens, 60 of 50 rollouts"
    assert spent.as_json(ALL)["tokens"] == {"used": 900, "limit": 1000, "left": 100}
    assert spent.as_json(ALL)["rollouts"]["left"] == 0
