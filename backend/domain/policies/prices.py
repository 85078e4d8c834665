"""Prices and limits of a policy's endpoint: `configuration["price"]` and `["limits"]`."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Dollars = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
PER = 1_000_000
"""Prices are per million tokens."""


class Price(BaseModel):
    """US dollars per million tokens."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    input: Dollars
    output: Dollars
    cached_input: Dollars | None = None
    """Price of prompt tokens from the endpoint's cache. None: the price of input."""


class Limits(BaseModel):
    """Endpoint limits, shared by all runs on a worker. None: no limit."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    concurrency: Annotated[int | None, Field(ge=1, le=1024)] = None
    """Concurrent requests."""
    requests_per_minute: Annotated[int | None, Field(ge=1)] = None
    tokens_per_minute: Annotated[int | None, Field(ge=1)] = None

    def shared_by(self, workers: int) -> "Limits":
        """Return one worker's part, so that all workers together keep the limits; at least 1 of each."""
        parts = {name: limit and max(1, limit // workers) for name, limit in self.model_dump().items()}
        return Limits.model_validate(parts)


def cost_of(
    price: Price | Mapping[str, object] | None, tokens_in: int, tokens_out: int, cached_in: int = 0
) -> float | None:
    """Return US dollars; None without a price. `cached_in`: how many of `tokens_in` came from a cache."""
    if not price:
        return None
    known = price if isinstance(price, Price) else Price.model_validate(price)
    cached = min(cached_in, tokens_in)
    cached_price = known.input if known.cached_input is None else known.cached_input
    return ((tokens_in - cached) * known.input + cached * cached_price + tokens_out * known.output) / PER


def sum_of_costs(costs: Iterable[float | None]) -> float | None:
    """Add up the known costs; None if none is known."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None
