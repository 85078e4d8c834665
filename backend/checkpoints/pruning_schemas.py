"""What a person or a script asks for when weights are to be pruned."""

import uuid
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from sqlalchemy.orm import Session

from backend.checkpoints.pruning import PrunePlan, plan_by_hand, plan_by_rule
from backend.domain.checkpoints.retention import KeepRule

_Count = Annotated[int, Field(ge=0, le=1_000_000)]
Count = Annotated[_Count | None, BeforeValidator(lambda value: None if value == "" else value)]
"""A form sends what was left empty as an empty text."""


class PruneRequest(BaseModel):
    """Checkpoints by their ids; or what a rule lets go, in one run or in all of them."""

    model_config = ConfigDict(extra="ignore")

    checkpoint_ids: list[uuid.UUID] = Field(default=[], max_length=10_000)
    """These ones, also when only the rule keeps them."""
    run_id: uuid.UUID | None = None
    """Only this run's; left out: those of all runs."""
    keep_last: Count = None
    """Another rule than each run's own: the newest so many GRPO checkpoints stay."""
    keep_every: Count = None
    """And the GRPO checkpoint of every so many steps; 0: none."""
    dry_run: bool = False
    """Only say what would go."""

    @model_validator(mode="after")
    def _one_way(self) -> "PruneRequest":
        if self.checkpoint_ids and (self.run_id or self.rule):
            raise ValueError("name checkpoints, or a run and a rule: not both")
        return self

    @property
    def rule(self) -> KeepRule | None:
        """None: each run's own."""
        if self.keep_last is None and self.keep_every is None:
            return None
        return KeepRule(KeepRule().last if self.keep_last is None else self.keep_last, self.keep_every or 0)

    def plan(self, session: Session) -> PrunePlan:
        if self.checkpoint_ids:
            return plan_by_hand(session, self.checkpoint_ids)
        return plan_by_rule(session, run_id=self.run_id, rule=self.rule)
