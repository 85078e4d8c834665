"""The budget of a training run, and its usage."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from backend.domain.training.blocks import Block, setting


class BudgetChoice(Block):
    """Limits in addition to the number of steps. The first one that is reached ends the run with a final held-out
    evaluation."""

    title: ClassVar[str] = "Budget"

    minutes: float | None = setting(None, gt=0, allow_inf_nan=False)
    """Maximum training time in minutes, over all stages and attempts, without waiting for a worker. Default: no limit.
    Use it if the machine is rented."""
    tokens: int | None = setting(None, ge=1)
    """Maximum number of tokens sampled in GRPO episodes, without held-out evaluations. Default: no limit. Use it to
    compare runs with equal compute."""
    rollouts: int | None = setting(None, ge=1)
    """Maximum number of GRPO episodes, without held-out evaluations. Default: no limit. Use it if every episode costs
    money."""


@dataclass(frozen=True, slots=True)
class Spending:
    minutes: float = 0.0
    tokens: int = 0
    rollouts: int = 0

    def used_up(self, choice: BudgetChoice) -> str | None:
        reached = (f"{limit:,.10g} {name}" for name, used, limit in self._limits(choice) if used >= limit)
        return next((f"The budget of {each} is used up." for each in reached), None)

    def summary(self, choice: BudgetChoice) -> str:
        """Describe the usage by limit, for a progress line; empty without limits."""
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
