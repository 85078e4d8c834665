"""The plan of a regrading or replay run: its `Run.configuration` is a `RegradingPlan` as JSON."""

import uuid
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.ids import stable_id
from backend.domain.vocabulary import Phase

DIVERGED_AT = "diverged_at"
"""Metric of a replayed rollout: the first step that differs, 0 for the reset."""
REPLIES_ENDED = "replies_ended"
"""Metric, 1 if the stored replies ran out before the episode ended."""
REPLIES_LEFT = "replies_left"
"""Metric: stored replies that were not used because the episode ended earlier."""
PROBED = 48
"""Sampled rollouts that are first replayed on their own version."""

Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class RegradingPlan(BaseModel):
    """Which stored rollouts to regrade and how. The target version is the run's own."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    weights: dict[str, Weight] | None = None
    """Weight by column, in order: no episode is played. None: the target version's rewards."""
    phase: Phase | None = None
    """Training runs only: the phase to take rollouts from."""
    where: str = ""
    """Filter on the rollouts, an expression of `domain.rollouts.filters`."""
    rollout_ids: list[uuid.UUID] = []
    """Only these rollouts."""
    override: str = ""
    """A person's reason to continue although regrading is not faithful."""
    batch: uuid.UUID | None = None
    """Runs that were started together share it."""
    concurrency: int = Field(default=64, ge=1, le=1024)

    @property
    def plays(self) -> bool:
        return self.weights is None


def copy_group_id(run_id: uuid.UUID, training_step: int | None, ordinal: int) -> uuid.UUID:
    """Return the id of a stored group's copy in the run `run_id`."""
    return stable_id("group", run_id, Phase.EVALUATION, training_step, ordinal)


def copy_id(run_id: uuid.UUID, training_step: int | None, ordinal: int, member: int) -> uuid.UUID:
    """Return the id of a stored rollout's copy in the run `run_id`."""
    return stable_id("rollout", copy_group_id(run_id, training_step, ordinal), member)
