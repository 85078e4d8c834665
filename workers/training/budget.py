"""What a run has used of its budget, over all of its attempts."""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.budget import BudgetChoice, Spending
from backend.domain.vocabulary import OF_STEPS
from backend.rollouts.tables import Rollout as RolloutRow

SAVED_EVERY_SECONDS = 2.0
"""A killed process forgets at most so much of its time."""


class BudgetTracker:
    """Counts minutes from its making on, tokens and rollouts as they are told; begins with what earlier attempts used.

    Time is spent however an attempt ends. Rollouts and tokens are those of the steps that count: what a cut attempt
    played after its last saved state is played again, and paid once.
    """

    def __init__(self, choice: BudgetChoice, folder: Path) -> None:
        self.choice = choice
        self._path = folder / "minutes.txt"
        self._before = float(self._path.read_text()) if self._path.exists() else 0.0
        self._began = self._saved_at = time.monotonic()
        self._tokens = self._rollouts = 0

    def recall(self, run_id: uuid.UUID, last: int) -> None:
        """Take in the stored rollouts of the run's GRPO steps up to this one."""
        of_run = (RolloutRow.run_id == run_id, RolloutRow.phase.in_(OF_STEPS), RolloutRow.training_step <= last)
        statement = select(func.count(), func.coalesce(func.sum(RolloutRow.tokens_out), 0)).where(*of_run)
        with transaction() as session:
            self._rollouts, self._tokens = session.execute(statement).one()

    def pay(self, rollouts: Sequence[Rollout]) -> None:
        """After a step."""
        self._rollouts += len(rollouts)
        self._tokens += sum(rollout.tokens_out for rollout in rollouts)

    @property
    def spending(self) -> Spending:
        minutes = self._before + (time.monotonic() - self._began) / 60
        return Spending(minutes, self._tokens, self._rollouts)

    @property
    def told(self) -> str:
        """What is used of each limit, for a line of progress."""
        return self.spending.told(self.choice)

    @property
    def as_json(self) -> dict[str, Any]:
        return self.spending.as_json(self.choice)

    def used_up(self) -> str | None:
        """Which limit is reached, in words."""
        if time.monotonic() - self._saved_at >= SAVED_EVERY_SECONDS:
            self.save()
        return self.spending.used_up(self.choice)

    def save(self) -> None:
        """Now and then, and at the end of an attempt."""
        self._saved_at = time.monotonic()
        if self.choice.minutes is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(repr(self.spending.minutes))
        partial.replace(self._path)
