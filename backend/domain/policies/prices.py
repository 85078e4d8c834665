"""What a policy's tokens cost, and how much its endpoint may be asked: `configuration["price"]` and `["limits"]`."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Dollars = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
PER = 1_000_000
"""Prices are told per so many tokens."""


class Price(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None
    """Of prompt tokens that the endpoint had in its cache; None: the price of input."""


class Limits(BaseModel):
    """What the endpoint bears, over all runs of a worker; None is no limit."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    concurrency: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Requests at a time."""
    requests_per_minute: Annotated[int | None, Field(ge=1)] = None
    tokens_per_minute: Annotated[int | None, Field(ge=1)] = None

    def shared_by(self, workers: int) -> "Limits":
        """What one of so many workers may use, so that together they keep the limits; at least 1 of each."""
        parts = {name: limit and max(1, limit // workers) for name, limit in self.model_dump().items()}
        return Limits.model_validate(parts)


def cost_of(
    price: Price | Mapping[str, Any] | None, tokens_in: int, tokens_out: int, cached_in: int = 0
) -> float | None:
    """In US dollars; None where no price is known. `cached_in`: how many of `tokens_in` came from a cache."""
    if not price:
        return None
    known = price if isinstance(price, Price) else Price.model_validate(price)
    cached = min(cached_in, tokens_in)
    cached_price = known.input if known.cached_input is None else known.cached_input
    return ((tokens_in - cached) * known.input + cached * cached_price + tokens_out * known.output) / PER


def sum_of_costs(costs: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None
