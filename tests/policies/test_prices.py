"""What tokens cost."""

import pytest
from pydantic import ValidationError

from backend.domain.policies.prices import Limits, Price, cost_of


def test_tokens_cost_by_the_million() -> None:
    assert cost_of({"input": 2.0, "output": 8.0}, 1_000_000, 500_000) == pytest.approx(6.0)


def test_cached_input_has_its_own_price() -> None:
    price = {"input": 2.0, "output": 8.0, "cached_input": 0.5}
    assert cost_of(price, 1_000_000, 0, cached_in=400_000) == pytest.approx(1.4)
    assert cost_of({"input": 2.0, "output": 8.0}, 1_000_000, 0, cached_in=400_000) == pytest.approx(2.0)


@pytest.mark.parametrize("price", [None, {}])
def test_an_unknown_price_is_no_cost_rather_than_nothing(price: dict[str, float] | None) -> None:
    assert cost_of(price, 10, 10) is None


def test_a_price_of_nothing_costs_nothing() -> None:
    assert cost_of(Price(input=0, output=0), 10, 10) == 0.0


@pytest.mark.parametrize("price", [{"input": -1, "output": 0}, {"input": 1}, {"input": float("nan"), "output": 0}])
def test_a_price_is_two_amounts(price: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Price.model_validate(price)


def test_limits_are_positive_or_none() -> None:
    assert Limits() == Limits(concurrency=None, requests_per_minute=None, tokens_per_minute=None)
    with pytest.raises(ValidationError):
        Limits(concurrency=0)


def test_workers_that_share_an_endpoint_keep_its_limits_together() -> None:
    whole = Limits(concurrency=10, requests_per_minute=100, tokens_per_minute=2)
    assert whole.shared_by(3) == Limits(concurrency=3, requests_per_minute=33, tokens_per_minute=1)
    assert whole.shared_by(1) == whole
    assert Limits().shared_by(4) == Limits()
