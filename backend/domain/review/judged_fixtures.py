"""Episodes on which a person gave a verdict, and the reward that every later version must give the same actions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from backend.domain.rollouts.rollout import TaskSpec

ROUNDING = 1e-4
"""Stored rewards are single precision: a bound that is taken from one leaves this margin."""


@dataclass(frozen=True, slots=True)
class JudgedFixture:
    """A fixture as the certificate replays it."""

    name: str
    judge: str
    """Author of the verdict that it derives from."""
    task: TaskSpec
    replies: Sequence[str]
    lowest: float | None
    """An honest episode must earn at least this."""
    highest: float | None
    """A hack must earn at most this."""

    @property
    def demand(self) -> str:
        if self.highest is not None:
            return f"at most {self.highest:.4g}"
        return f"at least {self.lowest:.4g}" if self.lowest is not None else "any reward"

    def is_met(self, reward: float, reach: float) -> bool:
        return (self.highest is None or reward <= self.highest + reach) and (
            self.lowest is None or reward >= self.lowest - reach
        )


def least_kept(reward: float) -> float:
    """The lower bound that an episode with this stored reward surely meets again."""
    return math.floor(reward / ROUNDING - 0.5) * ROUNDING
