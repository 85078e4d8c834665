"""What a training run may use up, and what it has used."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from backend.domain.training.blocks import Block


class BudgetChoice(Block):
    """Limits beside the number of steps. The first that is reached ends the run with a last examination."""

    minutes: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Minutes at work, all stages and attempts together, waiting for a worker not counted. Empty: no limit. Set it when
    the machine is rented or is needed again by a certain hour."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens that the policy samples in GRPO's episodes; examinations are not counted. Empty: no limit. Set it to
    compare runs at the same effort, or when replies may grow long."""
    rollouts: int | None = Field(default=None, ge=1)
    """Episodes that GRPO plays; examinations are not counted. Empty: no limit. Set it when every episode costs
    something, as with paid services behind the environment or groups that are replaced."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run has used so far."""

    minutes: float = 0.0
    tokens: int = 0
    rollouts: int = 0

    def used_up(self, choice: BudgetChoice) -> str | None:
        """Which limit is reached, in words; None while there is something left of each."""
        for name, used, limit in self._limits(choice):
            if used >= limit:
                return f"The budget of {limit:,.10g} {name} is used up."
        return None

    def told(self, choice: BudgetChoice) -> str:
        """Of each limit what is used, for a line of progress; empty where there is no limit."""
        return ", ".join(
            f"{round(used, 1):,.10g} of {limit:,.10g} {name}" for name, used, limit in self._limits(choice)
        )

    def as_json(self, choice: BudgetChoice) -> dict[str, Any]:
        """`{"minutes": {"used", "limit", "left"}}` for each limit."""
        return {
            name: {"used": round(used, 2), "limit": limit, "left": max(0, round(limit - used, 2))}
            for name, used, limit in self._limits(choice)
        }

    def _limits(self, choice: BudgetChoice) -> Iterator[tuple[str, float, float]]:
        for name in BudgetChoice.model_fields:
            limit = getattr(choice, name)
            if limit is not None:
                yield name, getattr(self, name), limit
